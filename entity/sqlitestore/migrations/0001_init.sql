-- One row: the position, who we are, and the oldest position that can be resumed
-- from.
create table store (
	one      integer primary key check (one = 1),
	revision integer not null,
	epoch    text    not null,
	-- Identity of the file; another one means that this is a copy.
	origin   text    not null,
	floor    integer not null
) strict;
insert into store values (1, 0, '', '', 0);

-- The current state. record is the CBOR of entity/eval/record.go.
create table entity (
	kind     text    not null,
	id       text    not null,
	project  text    not null,
	lease    text,
	revision integer not null,
	record   blob    not null,
	primary key (kind, id)
) strict;
create index entity_project on entity (project, kind, id) where project <> '';
create index entity_lease on entity (lease) where lease is not null;

create table entity_index (
	kind  text not null,
	attr  text not null,
	value blob not null,
	id    text not null,
	primary key (kind, attr, value, id)
) strict, without rowid;

-- Names (attr meta.name) and unique attributes. scope is the project, or empty
-- where the value is unique in the whole store.
create table entity_unique (
	kind  text not null,
	attr  text not null,
	value blob not null,
	scope text not null,
	id    text not null,
	primary key (kind, attr, value, scope)
) strict, without rowid;

create table entity_ref (
	target_kind text not null,
	target_id   text not null,
	kind        text not null,
	id          text not null,
	attr        text not null,
	on_delete   text not null,
	primary key (target_kind, target_id, kind, id, attr)
) strict, without rowid;

-- Every change. record is the new state, or of a deletion the last one; prev the
-- state before, kept only where the log may no longer hold it; departed the
-- indexed values that the change took from its entity. The first entry of a
-- transaction has its request id.
create table log (
	revision      integer not null,
	seq           integer not null,
	type          integer not null,
	kind          text    not null,
	id            text    not null,
	prev_revision integer not null,
	record        blob    not null,
	prev          blob,
	departed      blob,
	request       text,
	request_hash  blob,
	primary key (revision, seq)
) strict;
create index log_request on log (request) where request is not null;

-- When which revision was current, for retention by time. In microseconds since
-- 1970, as all times.
create table log_mark (
	at       integer primary key,
	revision integer not null
) strict;

-- Leases. When they expire is known in memory only. ended: it has entities left,
-- and is not renewed any more.
create table lease (
	id    text    primary key,
	ttl   integer not null, -- nanoseconds
	ended integer not null
) strict, without rowid;

-- By which attributes the entities of a kind are indexed; see reindex.go.
create table kind_index (
	kind        text primary key,
	fingerprint text not null
) strict, without rowid;

-- Append-only history. detail is JSON as it came.
create table history (
	stream       text    not null,
	at           integer not null,
	id           text    not null,
	project      text    not null,
	actor        text    not null,
	subject_kind text    not null,
	subject_id   text    not null,
	action       text    not null,
	outcome      text    not null,
	request      text    not null,
	detail       text
) strict;
-- Each filter of a list has an index in the order of the list.
create unique index history_at on history (stream, at, id);
create index history_project on history (stream, project, at, id);
create index history_actor on history (stream, actor, at, id);
create index history_subject on history (stream, subject_kind, subject_id, at, id);
create index history_action on history (stream, action, at, id);
create view history_audit as select * from history where stream = 'audit';
create view history_event as select * from history where stream = 'event';
create view history_execution as select * from history where stream = 'execution';
create view history_egress as select * from history where stream = 'egress';
