package top

import (
	"context"
	"math"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/metric"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// machine has the use of a node's machine in the last minute.
type machine struct {
	Node string `json:"node"`
	// Values are the last ones, by the names of the metrics of nodes: cpu (cores), memory
	// and disk_used (bytes), network_in and network_out (bytes/s).
	Values map[string]float64 `json:"values"`
}

// readMachines reads the machines of nodes from the history. It returns none if the
// server keeps no history, or if the user may not read those of nodes.
func (o *options) readMachines(ctx context.Context, nodes []*core.Node) ([]machine, error) {
	if len(nodes) == 0 {
		return nil, nil
	}
	conn, err := o.Connect(ctx)
	if err != nil {
		return nil, err
	}
	c := metric.NewMetricsClient(conn)
	from := time.Now().Add(-time.Minute)
	all := make([]machine, len(nodes))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for i, n := range nodes {
		g.Go(func() error {
			all[i] = machine{n.Name, map[string]float64{}}
			resp, err := c.Node(gctx, &metric.NodeRequest{Node: string(n.ID), Range: &metric.Range{From: &from}})
			if err != nil {
				if errs.Is(err, errs.NotFound) { // deleted meanwhile
					return nil
				}
				return err
			}
			for _, s := range resp.Series {
				if n := len(s.Values); n > 0 && !math.IsNaN(s.Values[n-1]) {
					all[i].Values[s.Metric] = s.Values[n-1]
				}
			}
			return nil
		})
	}
	switch err := g.Wait(); {
	case errs.Is(err, errs.FailedPrecondition), errs.Is(err, errs.PermissionDenied):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return all, nil
}

func (o *options) machineTable(machines []machine) {
	rows := make([][]string, len(machines))
	for i, m := range machines {
		cell := func(name, unit string) string {
			v, ok := m.Values[name]
			if !ok {
				return ""
			}
			return schema.CellBytes(int64(v)) + unit
		}
		cpu := ""
		if v, ok := m.Values["cpu"]; ok {
			cpu = strconv.FormatFloat(v, 'f', 2, 64)
		}
		rows[i] = []string{m.Node, cpu, cell("memory", ""), cell("disk_used", ""), cell("network_in", "/s"), cell("network_out", "/s")}
	}
	o.Table([]string{"MACHINE", "CPU", "MEMORY", "DISK USED", "NETWORK IN", "NETWORK OUT"}, rows)
}
