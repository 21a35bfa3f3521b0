package s3

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"miren.dev/runtime/pkg/errs"
)

// reread is how long credentials of a file are used before it is read again.
const reread = time.Minute

// credentials returns those of a file, or of the environment if file is "".
// They are read once to report what is wrong with them.
func credentials(file, profile string) (aws.CredentialsProvider, error) {
	read := fromEnvironment
	if file != "" {
		profile = first(profile, os.Getenv("AWS_PROFILE"), "default")
		read = func() (aws.Credentials, error) { return fromFile(file, profile) }
	}
	if _, err := read(); err != nil {
		return nil, err
	}
	return aws.NewCredentialsCache(aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return read() })), nil
}

func fromEnvironment() (aws.Credentials, error) {
	c := aws.Credentials{AccessKeyID: os.Getenv("AWS_ACCESS_KEY_ID"), SecretAccessKey: os.Getenv("AWS_SECRET_ACCESS_KEY"),
		SessionToken: os.Getenv("AWS_SESSION_TOKEN"), Source: "environment"}
	if !c.HasKeys() {
		return c, errs.New(errs.FailedPrecondition, "there are no credentials").
			WithHint("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a file with credentials=FILE")
	}
	return c, nil
}

// fromFile reads one section of a file like ~/.aws/credentials. Errors name
// lines and never show what is in them.
func fromFile(file, profile string) (aws.Credentials, error) {
	c := aws.Credentials{Source: file, CanExpire: true, Expires: time.Now().Add(reread)}
	data, err := os.ReadFile(file)
	if err != nil {
		return c, errs.New(errs.FailedPrecondition, "read the credentials: %w", err)
	}
	section, found := "", false
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		if line[0] == '[' && line[len(line)-1] == ']' {
			section = strings.TrimSpace(line[1 : len(line)-1])
			found = found || section == profile
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			return c, errs.New(errs.InvalidArgument, "%s, line %d: neither [section] nor key = value", file, n)
		}
		if section != profile {
			continue
		}
		switch value = strings.TrimSpace(value); strings.ToLower(strings.TrimSpace(key)) {
		case "aws_access_key_id":
			c.AccessKeyID = value
		case "aws_secret_access_key":
			c.SecretAccessKey = value
		case "aws_session_token":
			c.SessionToken = value
		}
	}
	if err := lines.Err(); err != nil {
		return c, errs.New(errs.InvalidArgument, "%s: %w", file, err)
	}
	switch {
	case !found:
		return c, errs.New(errs.InvalidArgument, "%s has no section [%s]", file, profile)
	case !c.HasKeys():
		return c, errs.New(errs.InvalidArgument, "%s: section [%s] lacks aws_access_key_id or aws_secret_access_key", file, profile)
	}
	return c, nil
}
