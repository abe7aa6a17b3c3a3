package tcp_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
)

// BenchmarkPlainHTTP is what the tcp fabric has to beat: the same bytes, four in flight, as HTTP
// bodies written from 1 MiB buffers and read into 64 MiB of memory.
func BenchmarkPlainHTTP(b *testing.B) {
	const size, inFlight, piece = 64 << 20, 4, 1 << 20
	buffers := make(chan []byte, inFlight)
	for range inFlight {
		buffers <- make([]byte, piece)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(size))
		buf := <-buffers
		defer func() { buffers <- buf }()
		for range size / piece {
			if _, err := w.Write(buf); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	b.SetBytes(size)
	b.ReportAllocs()
	var wg sync.WaitGroup
	work := make(chan struct{})
	for range inFlight {
		wg.Go(func() {
			memory := make([]byte, size)
			for range work {
				answer, err := server.Client().Get(server.URL)
				if err != nil {
					b.Error(err)
					continue
				}
				if _, err := io.ReadFull(answer.Body, memory); err != nil {
					b.Error(err)
				}
				_ = answer.Body.Close()
			}
		})
	}
	b.ResetTimer()
	for range b.N {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
	b.StopTimer()
	server.Client().CloseIdleConnections()
}
