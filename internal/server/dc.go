package server

import (
	"strconv"

	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/dc"
	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/internal/fabric/verbs/reach"
)

// openDC opens the dc fabric on the rails that rc has opened, or none where no adapter has dynamic connections: a node
// works without.
func (s *Server) openDC() (fabric.Fabric, bool) {
	if s.rails == nil {
		s.log.Warn("DC off", "error", "no RDMA rail")
		return nil, false
	}
	pools, err := s.rails.Pools(initiator.PoolOptions{})
	if err != nil {
		s.log.Warn("DC off", "error", err)
		return nil, false
	}
	r := s.config.RDMA
	key, err := strconv.ParseUint(r.DCKey, 0, 64) // validated
	if err != nil {
		s.log.Warn("DC off", "error", err)
		return nil, false
	}
	rule := reach.Rule{Networks: r.Networks(), Own: s.rails.Owns}
	o := dc.Options{Key: key, Permits: rule.Permits}
	for _, p := range pools {
		o.Rails = append(o.Rails, dc.Rail{Name: p.Name(), Up: p.Up, Reach: p.Reaches, Pool: p})
	}
	s.log.Warn("DC: not yet run on hardware", "rails", len(pools))
	if r.DCKey == config.DefaultDCKey {
		s.log.Warn("DC has the access key that everybody knows: whoever reads a token can use its memory",
			"remedy", "rdma.dc_key, and the same one in the clients")
	}
	return dc.New(o), true
}
