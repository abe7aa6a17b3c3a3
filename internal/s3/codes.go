package s3

type codeDefault struct {
	status  int
	message string
}

// The codes this server can answer.
const (
	AccessDenied                      Code = "AccessDenied"
	AuthorizationHeaderMalformed      Code = "AuthorizationHeaderMalformed"
	AuthorizationQueryParametersError Code = "AuthorizationQueryParametersError"
	BadDigest                         Code = "BadDigest"
	BadRequest                        Code = "BadRequest"
	BucketAlreadyExists               Code = "BucketAlreadyExists"
	BucketAlreadyOwnedByYou           Code = "BucketAlreadyOwnedByYou"
	BucketNotEmpty                    Code = "BucketNotEmpty"
	ConditionalRequestConflict        Code = "ConditionalRequestConflict"
	EntityTooLarge                    Code = "EntityTooLarge"
	EntityTooSmall                    Code = "EntityTooSmall"
	ExpiredToken                      Code = "ExpiredToken"
	IllegalLocationConstraint         Code = "IllegalLocationConstraintException"
	IncompleteBody                    Code = "IncompleteBody"
	InternalError                     Code = "InternalError"
	InvalidAccessKeyID                Code = "InvalidAccessKeyId"
	InvalidArgument                   Code = "InvalidArgument"
	InvalidBucketName                 Code = "InvalidBucketName"
	InvalidChunkSize                  Code = "InvalidChunkSizeError"
	InvalidDigest                     Code = "InvalidDigest"
	InvalidLocationConstraint         Code = "InvalidLocationConstraint"
	InvalidPart                       Code = "InvalidPart"
	InvalidPartOrder                  Code = "InvalidPartOrder"
	InvalidPartNumber                 Code = "InvalidPartNumber"
	InvalidRange                      Code = "InvalidRange"
	InvalidRDMAToken                  Code = "InvalidRDMAToken"
	InvalidRequest                    Code = "InvalidRequest"
	InvalidStorageClass               Code = "InvalidStorageClass"
	InvalidToken                      Code = "InvalidToken"
	InvalidURI                        Code = "InvalidURI"
	KeyTooLong                        Code = "KeyTooLongError"
	MalformedTrailer                  Code = "MalformedTrailerError"
	MalformedXML                      Code = "MalformedXML"
	MaxMessageLengthExceeded          Code = "MaxMessageLengthExceeded"
	MetadataTooLarge                  Code = "MetadataTooLarge"
	MethodNotAllowed                  Code = "MethodNotAllowed"
	MissingContentLength              Code = "MissingContentLength"
	NoSuchBucket                      Code = "NoSuchBucket"
	NoSuchKey                         Code = "NoSuchKey"
	NoSuchUpload                      Code = "NoSuchUpload"
	NoSuchVersion                     Code = "NoSuchVersion"
	NotImplemented                    Code = "NotImplemented"
	NotModified                       Code = "NotModified"
	OperationAborted                  Code = "OperationAborted"
	PreconditionFailed                Code = "PreconditionFailed"
	RDMATokenReplayed                 Code = "RDMATokenReplayed"
	RDMATransferFailed                Code = "RDMATransferFailed"
	RequestHeaderSectionTooLarge      Code = "RequestHeaderSectionTooLarge"
	RequestTimeout                    Code = "RequestTimeout"
	RequestTimeTooSkewed              Code = "RequestTimeTooSkewed"
	ServiceUnavailable                Code = "ServiceUnavailable"
	SignatureDoesNotMatch             Code = "SignatureDoesNotMatch"
	SlowDown                          Code = "SlowDown"
	XAmzContentSHA256Mismatch         Code = "XAmzContentSHA256Mismatch"
)

// codeTable has the status and the message of every code.
var codeTable = map[Code]codeDefault{
	AccessDenied:                      {403, "You may not do this."},
	AuthorizationHeaderMalformed:      {400, "The Authorization header could not be understood."},
	AuthorizationQueryParametersError: {400, "The X-Amz-* query parameters of the signature are not valid."},
	BadDigest:                         {400, "The payload does not have the digest that was declared for it."},
	BadRequest:                        {400, "The request could not be understood."},
	BucketAlreadyExists:               {409, "A bucket of this name exists and belongs to somebody else."},
	BucketAlreadyOwnedByYou:           {409, "You already own a bucket of this name."},
	BucketNotEmpty:                    {409, "The bucket still holds objects or uploads."},
	ConditionalRequestConflict:        {409, "Another request changed the object at the same time; try again."},
	EntityTooLarge:                    {400, "The payload is larger than allowed."},
	EntityTooSmall:                    {400, "A part other than the last is smaller than 5 MiB."},
	ExpiredToken:                      {400, "The session token has expired."},
	IllegalLocationConstraint:         {400, "The location constraint does not fit the region of this endpoint."},
	IncompleteBody:                    {400, "The body ended before the announced length."},
	InternalError:                     {500, "The server failed to answer this request; try again."},
	InvalidAccessKeyID:                {403, "The access key is not known here."},
	InvalidArgument:                   {400, "An argument of the request is not valid."},
	InvalidBucketName:                 {400, "The bucket name is not valid: 3 to 63 of a-z, 0-9, dot and hyphen."},
	InvalidChunkSize:                  {403, "A chunk of the body has a size that is not allowed."},
	InvalidDigest:                     {400, "The Content-MD5 header is not the base64 form of 16 bytes."},
	InvalidLocationConstraint:         {400, "The location constraint is not valid."},
	InvalidPart:                       {400, "A listed part does not exist or has another ETag or checksum."},
	InvalidPartOrder:                  {400, "The listed parts are not in ascending order."},
	InvalidPartNumber:                 {416, "The object does not have that part."},
	InvalidRange:                      {416, "The range lies outside the object."},
	InvalidRDMAToken:                  {400, "The RDMA token is not valid."},
	InvalidRequest:                    {400, "The request is not valid."},
	InvalidStorageClass:               {400, "The storage class is not offered."},
	InvalidToken:                      {400, "The session token is not valid."},
	InvalidURI:                        {400, "The request target is not validly encoded."},
	KeyTooLong:                        {400, "The key is longer than 1024 bytes."},
	MalformedTrailer:                  {400, "The trailer of the body is not what was announced."},
	MalformedXML:                      {400, "The XML body is not well-formed or not of the expected shape."},
	MaxMessageLengthExceeded:          {400, "The body is longer than this operation allows."},
	MetadataTooLarge:                  {400, "The user metadata is larger than 2 KB."},
	MethodNotAllowed:                  {405, "The method is not allowed on this resource."},
	MissingContentLength:              {411, "A Content-Length is needed."},
	NoSuchBucket:                      {404, "The bucket does not exist."},
	NoSuchKey:                         {404, "The key does not exist."},
	NoSuchUpload:                      {404, "The upload does not exist; it may be completed or aborted."},
	NoSuchVersion:                     {404, "The version does not exist."},
	NotImplemented:                    {501, "This server does not offer what was asked for."},
	NotModified:                       {304, "Not modified."},
	OperationAborted:                  {409, "A conflicting operation is under way on this resource; try again."},
	PreconditionFailed:                {412, "A precondition of the request does not hold."},
	RDMATokenReplayed:                 {403, "The RDMA token was used by an earlier request."},
	RDMATransferFailed:                {500, "The transfer to or from the client's memory failed."},
	RequestHeaderSectionTooLarge:      {400, "The headers of the request are too large."},
	RequestTimeout:                    {400, "The body did not arrive in time."},
	RequestTimeTooSkewed:              {403, "The time of the request differs too much from the server's clock."},
	ServiceUnavailable:                {503, "The server cannot take this request now; try again."},
	SignatureDoesNotMatch:             {403, "The signature is not the one of your secret key; check key and method."},
	SlowDown:                          {503, "Too many requests; slow down and try again."},
	XAmzContentSHA256Mismatch:         {400, "The payload does not have the SHA-256 that was signed."},
}
