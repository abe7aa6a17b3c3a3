package server

import (
	"github.com/penstock-store/penstock/internal/fabric/rcdial"
	"github.com/penstock-store/penstock/internal/fabric/verbs/reach"
)

// openRCTokens opens the fabric of `rc:` tokens on the rails that rc has opened; a node works without.
func (s *Server) openRCTokens() (*rcdial.Fabric, bool) {
	if s.rails == nil {
		s.log.Warn("rc: tokens off", "error", "no RDMA rail")
		return nil, false
	}
	r := s.config.RDMA
	if r.UnsignedConnect {
		s.log.Warn("whoever reaches the S3 endpoint can have queue pairs made, unsigned",
			"setting", "rdma.unsigned_connect", "remedy", "only on networks whose machines are trusted")
	}
	rule := reach.Rule{Networks: r.Networks(), Own: s.rails.Owns}
	return rcdial.New(rcdial.Options{Rails: s.rails, Permits: rule.Permits, Logger: s.log}), true
}
