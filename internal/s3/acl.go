package s3

import (
	"io"
	"strings"
)

// MaxACLBody fits the 100 grants that S3 allows, with the longest names.
const MaxACLBody = 128 << 10

// Grant is one entry of an access control list: what Grantee may do. Grantee is an id of a principal,
// the URI of a group or an e-mail address.
type Grant struct{ Grantee, Permission string }

// ReadACL reads an AccessControlPolicy.
func ReadACL(r io.Reader) ([]Grant, error) {
	body, err := readBody(r, MaxACLBody)
	if err != nil {
		return nil, err
	}
	root, err := parseXML(body, "AccessControlPolicy")
	if err != nil {
		return nil, err
	}
	var grants []Grant
	for _, list := range root.children {
		if list.name != "AccessControlList" {
			continue
		}
		for _, g := range list.children {
			var grant Grant
			permission, _ := g.child("Permission")
			grant.Permission = strings.TrimSpace(permission)
			for _, c := range g.children {
				for _, kind := range []string{"ID", "URI", "EmailAddress"} {
					if text, ok := c.child(kind); ok && c.name == "Grantee" {
						grant.Grantee = strings.TrimSpace(text)
					}
				}
			}
			if g.name != "Grant" || grant.Grantee == "" || grant.Permission == "" {
				return nil, New(MalformedXML, "A grant has no grantee or no permission.")
			}
			grants = append(grants, grant)
		}
	}
	return grants, nil
}
