package gateway

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/s3"
	"github.com/penstock-store/penstock/internal/token"
)

// hipPrefix begins the paths of a two-phase protocol of other clients (docs/wire.md). A node that does not offer it
// says so.
const hipPrefix = "/.hipobj-rc/"

// Paths that answer unsigned requests: for load balancers, which look at the port that they serve.
const (
	livePath  = ControlPrefix + "livez"
	readyPath = ControlPrefix + "readyz"
)

// controlVersion is NodeInfo.Version.
const controlVersion = 1

func isControl(path string) bool {
	return strings.HasPrefix(path, ControlPrefix) || strings.HasPrefix(path, hipPrefix) ||
		strings.HasPrefix(path, rcPrefix)
}

func (c *call) serveControl(path string) error {
	c.op = opControl
	switch {
	case path == livePath:
		return c.answerEmpty(http.StatusOK)
	case path == readyPath:
		if c.g.o.Ready != nil {
			if err := c.g.o.Ready(); err != nil {
				return retriable(s3.New(s3.ServiceUnavailable, "Not ready.").Wrap(err))
			}
		}
		return c.answerEmpty(http.StatusOK)
	case strings.HasPrefix(path, hipPrefix):
		return c.serveMessage(path)
	case strings.HasPrefix(path, rcPrefix):
		return c.serveRC(path)
	}
	if err := c.authenticate(); err != nil {
		return err
	}
	switch {
	case path == frame.ControlPath && c.r.Method == http.MethodGet:
		return c.nodeInfo()
	case path == frame.SessionsPath && c.r.Method == http.MethodPost:
		return c.newSession()
	case path == frame.ControlPath, path == frame.SessionsPath:
		return s3.New(s3.MethodNotAllowed, "")
	}
	for prefix, answer := range c.g.o.Extra {
		if path == prefix || strings.HasPrefix(path, prefix+"/") {
			return c.serveExtra(path, answer)
		}
	}
	return s3.New(s3.MethodNotAllowed, "Nothing is at this path.")
}

func (c *call) serveExtra(path string, answer Signed) error {
	text, release, err := c.document(frame.MaxControlBytes)
	if err != nil {
		return err
	}
	defer release()
	status, body, err := answer(c.r.Context(), SignedRequest{
		Method: c.r.Method, Path: path, RawQuery: c.request.RawQuery, Principal: c.identity.Principal, Body: text,
	})
	if err != nil {
		return err
	}
	if len(body) == 0 {
		return c.answerEmpty(status)
	}
	return c.answerBytes(status, jsonType, body)
}

func (c *call) nodeInfo() error {
	info := frame.NodeInfo{Version: controlVersion, Node: c.g.o.Node, Host: c.g.o.Host, Fabrics: []frame.FabricInfo{}}
	info.Limits = frame.ControlLimits{
		WindowBytes:    token.MaxWindow,
		DeadlineMillis: c.g.o.RDMA.Deadline.Milliseconds(),

		MaxDeadlineMillis: c.g.o.RDMA.SessionDeadline.Milliseconds(),
	}
	if c.g.o.Fabrics != nil && c.g.o.RDMA.Enabled {
		for _, r := range c.g.o.Fabrics.Rails() {
			info.Fabrics = append(info.Fabrics, frame.FabricInfo{
				Name: r.Fabric, Network: r.Network, Address: r.Address, Up: r.Up, Reason: r.Reason,
				Foreign: r.Foreign, ForeignReason: r.ForeignReason,
			})
		}
		l := c.g.o.Fabrics.Limits()
		info.Limits.RegionBytes, info.Limits.Regions = l.MappedBytes, l.RegionsPerSession
		info.Limits.Sessions = l.SessionsPerPrincipal
	}
	body, err := json.Marshal(info)
	if err != nil {
		return err
	}
	return c.answerBytes(http.StatusOK, jsonType, body)
}

func (c *call) newSession() error {
	text, release, err := c.document(frame.MaxControlBytes)
	if err != nil {
		return err
	}
	defer release()
	request, err := frame.DecodeSessionRequest(newReader(text))
	if err != nil {
		return s3.New(s3.InvalidRequest, "The body is not a session request.")
	}
	if c.g.o.Fabrics == nil || !c.g.o.RDMA.Enabled {
		return &declined{reason: reasonOff}
	}
	offer, err := c.g.o.Fabrics.NewSession(c.r.Context(), request.Fabric, c.identity.Principal)
	if err != nil {
		return declineOf(err)
	}
	if _, err := c.g.o.Keys.Lookup(c.identity.AccessKey); err != nil {
		// The key was revoked since it was verified, and its sessions were ended before this one was there.
		c.g.o.Fabrics.RevokePrincipal(c.identity.Principal)
		return err
	}
	body, err := frame.SessionReply{
		Session: offer.ID, Secret: offer.Secret, Fabric: request.Fabric, Network: offer.Network, Address: offer.Address,
		Expires: offer.Expires,
	}.Encode()
	if err != nil {
		return err
	}
	c.w.Header().Set("Cache-Control", "no-store")
	return c.answerBytes(http.StatusOK, jsonType, body)
}
