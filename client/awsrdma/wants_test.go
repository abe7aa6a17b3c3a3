package awsrdma_test

import (
	"errors"
	"testing"

	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"

	"github.com/penstock-store/penstock/client/awsrdma"
)

func wantResult(t testing.TB, m middleware.Metadata, want awsrdma.Result) {
	t.Helper()
	if got, ok := awsrdma.ResultOf(m); !ok || got != want {
		t.Errorf("result %+v %v, want %+v", got, ok, want)
	}
}

func wantCode(t testing.TB, err error, code string) {
	t.Helper()
	var api smithy.APIError
	if !errors.As(err, &api) || api.ErrorCode() != code {
		t.Errorf("got %v, want code %s", err, code)
	}
}
