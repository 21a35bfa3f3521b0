package s3

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// probes is the part of the prefix with the objects of probe. One that is
// older than staleProbe was left by a process that died.
const (
	probes     = "probe/"
	staleProbe = time.Hour
)

// probe checks that the bucket is there and that the server honours the
// conditions of writes.
func (s *Store) probe(ctx context.Context) error {
	if err := s.sweepProbes(ctx); err != nil {
		return err
	}
	key := probes + rand.Text()
	v, err := s.Create(ctx, key, []byte("1"))
	if err != nil {
		return errs.Wrap(err, "write to it")
	}
	err = s.conditions(ctx, key, v)
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
	defer cancel()
	if derr := s.Delete(clean, key); err == nil {
		err = errs.Wrap(derr, "delete from it")
	}
	return err
}

func (s *Store) conditions(ctx context.Context, key string, v store.Version) error {
	lacks := func(what string) error {
		return errs.New(errs.FailedPrecondition, "the server does not honour %s: disks in it would be lost when two hosts use them", what).
			WithHint("use a server with conditional writes: Amazon S3, MinIO, Ceph 19 and others have them")
	}
	switch _, err := s.Create(ctx, key, []byte("2")); {
	case err == nil:
		return lacks("If-None-Match")
	case !errs.Is(err, errs.AlreadyExists):
		return errs.Wrap(err, "try If-None-Match")
	}
	switch _, err := s.Replace(ctx, key, []byte("3"), `"00000000000000000000000000000000"`); {
	case err == nil:
		return lacks("If-Match")
	case !errs.Is(err, errs.Conflict):
		return errs.Wrap(err, "try If-Match")
	}
	now, err := s.Replace(ctx, key, []byte("4"), v)
	switch {
	case errs.Is(err, errs.Conflict):
		return lacks("If-Match (it refuses the version that is there)")
	case err != nil:
		return errs.Wrap(err, "try If-Match")
	case now == v:
		return lacks("versions: another content has the same ETag")
	}
	switch data, got, err := s.Get(ctx, key); {
	case err != nil:
		return errs.Wrap(err, "read from it")
	case string(data) != "4" || got != now:
		return lacks("the order of writes and reads")
	}
	return nil
}

// sweepProbes deletes the objects of probes that died. It is the first request
// of a store and says whether the bucket is there.
func (s *Store) sweepProbes(ctx context.Context) error {
	page, err := s.page(ctx, probes, nil)
	if err != nil {
		return errs.Wrap(err, "list it")
	}
	for _, o := range page.Contents {
		if o.LastModified == nil || time.Since(*o.LastModified) < staleProbe {
			continue
		}
		try, cancel := context.WithTimeout(ctx, s.timeout)
		_, err := s.client.DeleteObject(try, &s3.DeleteObjectInput{Bucket: &s.bucket, Key: o.Key})
		cancel()
		if err != nil {
			return errs.Wrap(s.classify(ctx, aws.ToString(o.Key), err), "delete from it")
		}
	}
	return nil
}
