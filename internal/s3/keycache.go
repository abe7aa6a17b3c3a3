package s3

import (
	"crypto/hmac"
	"crypto/sha256"
	"sync"
)

// maxCachedKeys bounds one generation of the signing-key cache: a key is in use for a day and a few
// regions, so this serves hundreds of active access keys in under 1 MiB.
const maxCachedKeys = 1024

type scopeKey struct{ accessKey, date, region, service string }

type cachedKey struct {
	secret string // the key is only valid for this secret; it may change under the same access key
	key    [sha256.Size]byte
}

// keyCache remembers derived signing keys in two generations: when the young one is full, it
// becomes the old one and the old one is dropped.
type keyCache struct {
	mu         sync.RWMutex
	young, old map[scopeKey]cachedKey
}

func newKeyCache() *keyCache {
	return &keyCache{young: make(map[scopeKey]cachedKey), old: make(map[scopeKey]cachedKey)}
}

// signingKey returns the SigV4 signing key of a scope.
func (c *keyCache) signingKey(secret string, s scopeKey) [sha256.Size]byte {
	c.mu.RLock()
	k, ok := c.young[s]
	if !ok {
		k, ok = c.old[s]
		if ok {
			c.mu.RUnlock()
			if hmac.Equal([]byte(k.secret), []byte(secret)) {
				c.put(s, k)
				return k.key
			}
			return c.derive(secret, s)
		}
	}
	c.mu.RUnlock()
	if ok && hmac.Equal([]byte(k.secret), []byte(secret)) {
		return k.key
	}
	return c.derive(secret, s)
}

func (c *keyCache) derive(secret string, s scopeKey) [sha256.Size]byte {
	k := cachedKey{secret: secret, key: deriveKey(secret, s)}
	c.put(s, k)
	return k.key
}

func (c *keyCache) put(s scopeKey, k cachedKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.young) >= maxCachedKeys {
		c.old, c.young = c.young, make(map[scopeKey]cachedKey)
	}
	c.young[s] = k
}

func (c *keyCache) size() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.young) + len(c.old)
}

func deriveKey(secret string, s scopeKey) [sha256.Size]byte {
	k := hmacSHA256([]byte("AWS4"+secret), []byte(s.date))
	k = hmacSHA256(k[:], []byte(s.region))
	k = hmacSHA256(k[:], []byte(s.service))
	return hmacSHA256(k[:], []byte(scopeEnd))
}

func hmacSHA256(key, data []byte) (sum [sha256.Size]byte) {
	h := hmac.New(sha256.New, key)
	h.Write(data)
	h.Sum(sum[:0])
	return sum
}
