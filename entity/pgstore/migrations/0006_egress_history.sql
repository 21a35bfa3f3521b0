-- What sandboxes asked for on the network.
create table history_egress partition of history for values in ('egress') partition by range (at);
