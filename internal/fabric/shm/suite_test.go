package shm_test

import (
	"os"
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
		New: func(l *fabric.Ledger, _ []byte) (fabrictest.Fabric, error) {
			return shm.New(shm.Options{Ledger: l})
		},
	}
}

// foreignBed is shm with clients whose memory is no memfd.
func foreignBed() fabrictest.Bed {
	b := bed()
	b.Dial = fabrictest.DialForeign
	return b
}

// foreignVariable makes client processes of the test binary use foreign memory.
const foreignVariable = "PENSTOCK_SHM_FOREIGN"

func TestMain(m *testing.M) {
	if shm.PlayRole() {
		return
	}
	if os.Getenv(foreignVariable) != "" {
		fabrictest.Main(m, foreignBed())
		return
	}
	fabrictest.Main(m, bed())
}

// TestForeignConformance is the suite over foreign memory. TestAsUser runs it where the tests run as root.
func TestForeignConformance(t *testing.T) {
	shm.NeedForeign(t)
	t.Setenv(foreignVariable, "1")
	fabrictest.Run(t, foreignBed())
}

func TestConformance(t *testing.T) { fabrictest.Run(t, bed()) }

func BenchmarkFabric(b *testing.B) { fabrictest.Bench(b, bed()) }
