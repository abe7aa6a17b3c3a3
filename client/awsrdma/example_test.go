package awsrdma_test

import (
	"context"
	"fmt"
	"io"
	"log"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/client/awsrdma"
)

// A program that uses aws-sdk-go-v2 adds a session and one option.
func Example() {
	ctx := context.Background()
	endpoint, access, secret := "http://127.0.0.1:9000", "ACCESS", "SECRET"

	penstock, err := client.New(client.Config{
		Endpoint:    endpoint,
		Credentials: client.Credentials{AccessKey: access, SecretKey: secret},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer penstock.Close()
	session := awsrdma.New(penstock, awsrdma.Options{})
	defer session.Close()

	svc := s3.NewFromConfig(aws.Config{
		Region:       "us-east-1",
		BaseEndpoint: aws.String(endpoint),
		Credentials:  credentials.NewStaticCredentialsProvider(access, secret, ""),
	}, awsrdma.Enable(session), func(o *s3.Options) { o.UsePathStyle = true })

	out, err := svc.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String("models"), Key: aws.String("weights")})
	if err != nil {
		log.Fatal(err)
	}
	defer out.Body.Close()
	if _, err := io.Copy(io.Discard, out.Body); err != nil {
		log.Fatal(err)
	}
	result, _ := awsrdma.ResultOf(out.ResultMetadata)
	fmt.Println(result.Bytes, "bytes by", result.Path, result.Reason)
}

// The bytes of an object land in a window of the program's own, without a copy.
func ExampleWithBuffer() {
	ctx := context.Background()
	penstock, err := client.New(client.Config{}) // from the environment
	if err != nil {
		log.Fatal(err)
	}
	defer penstock.Close()
	session := awsrdma.New(penstock, awsrdma.Options{Strict: true})
	defer session.Close()
	svc := s3.New(s3.Options{Region: "us-east-1"}, awsrdma.Enable(session))

	region, err := penstock.Alloc(64 << 20)
	if err != nil {
		log.Fatal(err)
	}
	defer region.Close()
	out, err := svc.GetObject(awsrdma.WithBuffer(ctx, region.All()), &s3.GetObjectInput{
		Bucket: aws.String("models"), Key: aws.String("weights"),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(region.Bytes()[:aws.ToInt64(out.ContentLength)][0])
}
