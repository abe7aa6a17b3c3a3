package native

// #include "nv.h"
import "C"

import "unsafe"

// Slices of Work and Completion are handed to C as they are, and numbers too: an index other than 0 does not compile.
var _ = [...]struct{}{
	same[unsafe.Sizeof(Work{})-unsafe.Sizeof(C.struct_nv_work{})],
	same[unsafe.Offsetof(Work{}.ID)-unsafe.Offsetof(C.struct_nv_work{}.id)],
	same[unsafe.Offsetof(Work{}.Local)-unsafe.Offsetof(C.struct_nv_work{}.local)],
	same[unsafe.Offsetof(Work{}.Remote)-unsafe.Offsetof(C.struct_nv_work{}.remote)],
	same[unsafe.Offsetof(Work{}.Length)-unsafe.Offsetof(C.struct_nv_work{}.length)],
	same[unsafe.Offsetof(Work{}.LKey)-unsafe.Offsetof(C.struct_nv_work{}.lkey)],
	same[unsafe.Offsetof(Work{}.RKey)-unsafe.Offsetof(C.struct_nv_work{}.rkey)],
	same[unsafe.Offsetof(Work{}.Op)-unsafe.Offsetof(C.struct_nv_work{}.op)],
	same[unsafe.Offsetof(Work{}.Signal)-unsafe.Offsetof(C.struct_nv_work{}.signal)],
	same[unsafe.Offsetof(Work{}.Imm)-unsafe.Offsetof(C.struct_nv_work{}.imm)],

	same[unsafe.Sizeof(Completion{})-unsafe.Sizeof(C.struct_nv_completion{})],
	same[unsafe.Offsetof(Completion{}.ID)-unsafe.Offsetof(C.struct_nv_completion{}.id)],
	same[unsafe.Offsetof(Completion{}.Status)-unsafe.Offsetof(C.struct_nv_completion{}.status)],
	same[unsafe.Offsetof(Completion{}.Vendor)-unsafe.Offsetof(C.struct_nv_completion{}.vendor)],
	same[unsafe.Offsetof(Completion{}.QPN)-unsafe.Offsetof(C.struct_nv_completion{}.qpn)],
	same[unsafe.Offsetof(Completion{}.Bytes)-unsafe.Offsetof(C.struct_nv_completion{}.bytes)],

	same[unsafe.Offsetof(Completion{}.Imm)-unsafe.Offsetof(C.struct_nv_completion{}.imm)],
	same[unsafe.Offsetof(Completion{}.Received)-unsafe.Offsetof(C.struct_nv_completion{}.received)],
	same[unsafe.Offsetof(Completion{}.HasImm)-unsafe.Offsetof(C.struct_nv_completion{}.has_imm)],

	same[OpWrite-C.NV_WRITE], same[OpRead-C.NV_READ], same[OpWriteImm-C.NV_WRITE_IMM],

	same[StatusOK-C.NV_OK], same[StatusLocal-C.NV_LOCAL], same[StatusFlushed-C.NV_FLUSHED],
	same[StatusRemoteAccess-C.NV_REMOTE_ACCESS], same[StatusRemoteOther-C.NV_REMOTE_OTHER],
	same[StatusRetry-C.NV_RETRY], same[StatusOther-C.NV_OTHER],

	same[QPReset-C.NV_QP_RESET], same[QPInit-C.NV_QP_INIT], same[QPReady-C.NV_QP_READY],
	same[QPSend-C.NV_QP_SEND], same[QPError-C.NV_QP_ERROR],

	same[LocalWrite-C.NV_LOCAL_WRITE], same[RemoteWrite-C.NV_REMOTE_WRITE], same[RemoteRead-C.NV_REMOTE_READ],

	same[LinkUnknown-C.NV_LINK_UNKNOWN], same[LinkInfiniBand-C.NV_LINK_INFINIBAND],
	same[LinkEthernet-C.NV_LINK_ETHERNET],

	same[GIDInfiniBand-C.NV_GID_INFINIBAND], same[GIDRoCEv1-C.NV_GID_ROCE_V1], same[GIDRoCEv2-C.NV_GID_ROCE_V2],

	same[EventOther-C.NV_EVENT_OTHER], same[EventPortUp-C.NV_EVENT_PORT_UP],
	same[EventPortDown-C.NV_EVENT_PORT_DOWN], same[EventGIDs-C.NV_EVENT_GIDS],
	same[EventDeviceFatal-C.NV_EVENT_DEVICE_FATAL], same[EventQPFatal-C.NV_EVENT_QP_FATAL],
}

var same = [1]struct{}{}
