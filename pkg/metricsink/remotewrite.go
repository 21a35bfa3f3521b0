package metricsink

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/prompb"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sink/httpsink"
)

// remoteWrite sends to Prometheus, or to what takes its remote write.
type remoteWrite struct {
	*httpsink.Client
	url string
}

// againRemoteWrite reports whether the protocol allows to send samples again after an answer with a status.
func againRemoteWrite(status int) bool {
	return status == http.StatusTooManyRequests || status >= 500
}

func (s *remoteWrite) Send(ctx context.Context, samples []Sample) error {
	req := prompb.WriteRequest{Timeseries: make([]prompb.TimeSeries, len(samples))}
	for i := range samples {
		x := &samples[i]
		// Labels are in the order of their names; this one comes before lower-case letters.
		labels := []prompb.Label{{Name: model.MetricNameLabel, Value: x.Name}}
		for _, k := range slices.Sorted(maps.Keys(x.Labels)) {
			labels = append(labels, prompb.Label{Name: k, Value: x.Labels[k]})
		}
		req.Timeseries[i] = prompb.TimeSeries{Labels: labels, Samples: []prompb.Sample{{Value: x.Value, Timestamp: x.At.UnixMilli()}}}
	}
	body, err := req.Marshal()
	if err != nil {
		return errs.New(errs.InvalidArgument, "encode: %w", err)
	}
	_, err = s.Post(ctx, s.url, map[string]string{
		"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy", "X-Prometheus-Remote-Write-Version": "0.1.0",
	}, snappy.Encode(nil, body))
	return err
}
