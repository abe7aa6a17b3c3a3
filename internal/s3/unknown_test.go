package s3

import (
	"context"
	"testing"
	"time"
)

// TestUnknownKeyCostsTheSame: whether an access key exists does not show in the time of a refusal. The fastest of
// many batches is compared, since everything else only adds time.
func TestUnknownKeyCostsTheSame(t *testing.T) {
	v := testVerifier(testNow)
	request := func(accessKey string) *Request {
		o := testOptions()
		o.Credentials = Credentials{AccessKey: accessKey, SecretKey: "wrong"}
		return signed(t, "GET", objectURL, o)
	}
	known, unknown := request(testKey), request("AKIANOBODYNOBODYNOBO")
	if _, err := v.Verify(context.Background(), known); !IsCode(err, SignatureDoesNotMatch) {
		t.Fatal(err)
	}
	if _, err := v.Verify(context.Background(), unknown); !IsCode(err, InvalidAccessKeyID) {
		t.Fatal(err)
	}
	const batches, size = 60, 100
	fastest := func(r *Request, best time.Duration) time.Duration {
		begin := time.Now()
		for range size {
			_, _ = v.Verify(context.Background(), r)
		}
		return min(best, time.Since(begin))
	}
	a, b := time.Hour, time.Hour
	for range batches {
		a, b = fastest(known, a), fastest(unknown, b)
	}
	if ratio := float64(b) / float64(a); ratio < 0.6 || ratio > 1.5 {
		t.Errorf("a refusal takes %v for a known key and %v for an unknown one", a/size, b/size)
	}
}
