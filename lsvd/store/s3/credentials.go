package s3

import (
	"cmp"
	"context"
	"errors"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go/logging"

	"miren.dev/runtime/pkg/errs"
)

// reread is how long credentials of a file are used before it is read again.
const reread = time.Minute

// chainTimeout bounds the first search for credentials: without any, the SDK
// asks last for those of an instance, and where there is no such service it
// waits for an answer.
const chainTimeout = 10 * time.Second

// credentials returns those of a file, or without one those that the SDK's
// chain finds. They are read once to report what is wrong with them. region is
// that of the chain's configuration, "" if it has none.
func credentials(ctx context.Context, file, profile, region string) (p aws.CredentialsProvider, configured string, err error) {
	if file == "" {
		return fromChain(ctx, profile, region)
	}
	profile = cmp.Or(profile, os.Getenv("AWS_PROFILE"), "default")
	read := func(ctx context.Context) (aws.Credentials, error) { return fromFile(ctx, file, profile) }
	if _, err := read(ctx); err != nil {
		return nil, "", err
	}
	return aws.NewCredentialsCache(aws.CredentialsProviderFunc(read)), "", nil
}

// fromChain returns the first credentials of the SDK's chain: of the
// environment; of a profile in ~/.aws/config and ~/.aws/credentials, which may
// name a role, a login or a program; of a web identity (AWS_ROLE_ARN and
// AWS_WEB_IDENTITY_TOKEN_FILE); of the container; of the instance. Those that
// expire are renewed.
func fromChain(ctx context.Context, profile, region string) (p aws.CredentialsProvider, configured string, err error) {
	env := aws.Credentials{AccessKeyID: os.Getenv("AWS_ACCESS_KEY_ID"), SecretAccessKey: os.Getenv("AWS_SECRET_ACCESS_KEY"),
		SessionToken: os.Getenv("AWS_SESSION_TOKEN"), Source: "environment"}
	if profile == "" && env.HasKeys() { // the first of the chain; files of a profile need not be sound
		return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return env, nil }), "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, chainTimeout)
	defer cancel()
	// Requests to the store are not repeated (package comment), those for credentials are.
	cfg, err := config.LoadDefaultConfig(ctx, config.WithRegion(region), config.WithSharedConfigProfile(profile), config.WithLogger(logging.Nop{}))
	if err != nil {
		return nil, "", errs.New(errs.FailedPrecondition, "read the configuration of the AWS SDK: %w", err).
			WithHint("correct ~/.aws/config, or name a file with credentials=FILE")
	}
	if _, err := cfg.Credentials.Retrieve(ctx); err != nil {
		return nil, "", errs.New(errs.FailedPrecondition, "there are no credentials: %w", err).
			WithHint("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a file with credentials=FILE or a profile of ~/.aws/config with profile=NAME, or give the machine a role")
	}
	return cfg.Credentials, cfg.Region, nil
}

// fromFile reads one section of a file like ~/.aws/credentials. Errors never show
// what is in it.
func fromFile(ctx context.Context, file, profile string) (aws.Credentials, error) {
	if f, err := os.Open(file); err != nil { // the SDK takes it for empty
		return aws.Credentials{}, errs.New(errs.FailedPrecondition, "read the credentials: %w", err)
	} else {
		f.Close()
	}
	c, err := config.LoadSharedConfigProfile(ctx, profile, func(o *config.LoadSharedConfigOptions) {
		o.CredentialsFiles, o.ConfigFiles = []string{file}, []string{}
	})
	switch {
	case errors.As(err, new(config.SharedConfigProfileNotExistError)):
		return c.Credentials, errs.New(errs.InvalidArgument, "%s has no section [%s]", file, profile)
	case err != nil || !c.Credentials.HasKeys():
		return c.Credentials, errs.New(errs.InvalidArgument, "%s: section [%s] lacks aws_access_key_id or aws_secret_access_key", file, profile)
	}
	c.Credentials.CanExpire, c.Credentials.Expires = true, time.Now().Add(reread)
	return c.Credentials, nil
}
