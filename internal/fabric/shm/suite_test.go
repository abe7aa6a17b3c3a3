package shm_test

import (
	"testing"

	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/fabrictest"
	"github.com/penstock-store/penstock/internal/fabric/shm"
)

func bed() fabrictest.Bed {
	return fabrictest.Bed{
		Name:    shm.Name,
		Charged: true,
		Dial:    fabrictest.DialTarget,
		New: func(l *fabric.Ledger) (fabrictest.Fabric, error) {
			return shm.New(shm.Options{Ledger: l})
		},
	}
}

func TestMain(m *testing.M) { fabrictest.Main(m, bed()) }

func TestConformance(t *testing.T) { fabrictest.Run(t, bed()) }

func BenchmarkFabric(b *testing.B) { fabrictest.Bench(b, bed()) }
