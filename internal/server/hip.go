package server

import (
	"fmt"

	"github.com/penstock-store/penstock/internal/fabric/hip"
	"github.com/penstock-store/penstock/internal/fabric/verbs/reach"
)

// openHip opens the fabric of hipobj-rc-v2 on the rails that rc has opened; a node works without. Errors: the staging
// memory cannot be mapped.
func (s *Server) openHip() (f *hip.Fabric, ok bool, err error) {
	if s.rails == nil {
		s.log.Warn("hipobj off", "error", "no RDMA rail")
		return nil, false, nil
	}
	r := s.config.RDMA
	rule := reach.Rule{Networks: r.Networks(), Own: s.rails.Owns}
	f, err = hip.New(hip.Options{
		Rails: s.rails, Permits: rule.Permits, Sessions: r.HipObjSessions, Staging: int(r.HipObjStaging),
		Deadline: r.Deadline, Logger: s.log,
	})
	if err != nil {
		return nil, false, fmt.Errorf("rdma.hipobj_staging: %w", err)
	}
	return f, true, nil
}
