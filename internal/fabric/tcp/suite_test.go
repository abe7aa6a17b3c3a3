package tcp_test

import (
	"testing"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/fabrictest"
	"github.com/penstock-store/penstock/internal/fabric/tcp"
)

func bed() fabrictest.Bed {
	return fabrictest.Bed{
		Name:    tcp.Name,
		Charged: false,
		Dial:    fabrictest.DialTarget,
		New: func(l *fabric.Ledger, _ []byte) (fabrictest.Fabric, error) {
			return tcp.New(tcp.Options{Ledger: l, Address: "127.0.0.1:0"})
		},
	}
}

func TestMain(m *testing.M) { fabrictest.Main(m, bed()) }

func TestConformance(t *testing.T) { fabrictest.Run(t, bed()) }

func BenchmarkFabric(b *testing.B) { fabrictest.Bench(b, bed()) }
