-- One row: the counter that every batch locks first, and who we are.
create table store (
	one      boolean primary key default true check (one),
	revision bigint not null default 0,
	epoch    text   not null default '',
	-- System identifier and timeline of the cluster that wrote last; another
	-- one means that this is a restored or promoted copy.
	origin   text   not null default ''
) with (fillfactor = 10);
insert into store default values;

-- The current state. record is the CBOR of record.go.
create table entity (
	kind     text collate "C" not null,
	id       text collate "C" not null,
	project  text collate "C" not null,
	lease    text collate "C",
	revision bigint not null,
	record   bytea  not null,
	primary key (kind, id)
) with (fillfactor = 80);
alter table entity alter column record set storage external;
create index entity_project on entity (project, kind, id) where project <> '';
create index entity_lease on entity (lease) where lease is not null;

create table entity_index (
	kind  text collate "C" not null,
	attr  text collate "C" not null,
	value bytea not null,
	id    text collate "C" not null,
	primary key (kind, attr, value, id)
);

-- Names (attr meta.name) and unique attributes. scope is the project, or
-- empty where the value is unique in the whole store.
create table entity_unique (
	kind  text collate "C" not null,
	attr  text collate "C" not null,
	value bytea not null,
	scope text collate "C" not null,
	id    text collate "C" not null,
	primary key (kind, attr, value, scope)
);

create table entity_ref (
	target_kind text collate "C" not null,
	target_id   text collate "C" not null,
	kind        text collate "C" not null,
	id          text collate "C" not null,
	attr        text collate "C" not null,
	on_delete   text collate "C" not null,
	primary key (target_kind, target_id, kind, id, attr)
);

-- Every change. record is the new state, or of a deletion the last one; prev
-- the state before, kept only where the log may no longer hold it.
create table log (
	revision      bigint   not null,
	seq           int      not null,
	batch         bigint   not null,
	type          smallint not null,
	kind          text collate "C" not null,
	id            text collate "C" not null,
	prev_revision bigint   not null,
	record        bytea    not null,
	prev          bytea,
	primary key (revision, seq)
) partition by range (revision);
alter table log alter column record set storage external;
alter table log alter column prev set storage external;
create table log_0 partition of log for values from (0) to (65536);

-- Positions below floor cannot be resumed from.
create table compaction (
	one   boolean primary key default true check (one),
	floor bigint not null default 0
);
insert into compaction default values;

-- When which revision was current, for retention by time.
create table log_mark (
	at       timestamptz primary key,
	revision bigint not null
);

create table lease (
	id      text collate "C" primary key,
	ttl     interval    not null,
	expires timestamptz not null
) with (fillfactor = 50);

-- When some server last looked for lapsed leases.
create table expirer (
	one boolean primary key default true check (one),
	at  timestamptz not null default clock_timestamp()
) with (fillfactor = 10);
insert into expirer default values;

create table request (
	id     text collate "C" primary key,
	at     timestamptz not null,
	hash   bytea not null,
	result bytea not null
);
create index request_at on request (at);
