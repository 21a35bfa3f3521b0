-- Append-only history: a table per stream, a partition per day, made ahead and
-- dropped whole. detail is JSON as it came.
create table history (
	stream       text collate "C" not null,
	at           timestamptz      not null,
	id           text collate "C" not null,
	project      text collate "C" not null,
	actor        text collate "C" not null,
	subject_kind text collate "C" not null,
	subject_id   text collate "C" not null,
	action       text collate "C" not null,
	outcome      text collate "C" not null,
	request      text collate "C" not null,
	detail       text,
	primary key (at, id, stream)
) partition by list (stream);
-- Each filter of a list has an index in the order of the list.
create index history_project on history (project, at, id);
create index history_actor on history (actor, at, id);
create index history_subject on history (subject_kind, subject_id, at, id);
create index history_action on history (action, at, id);
create table history_audit partition of history for values in ('audit') partition by range (at);
create table history_event partition of history for values in ('event') partition by range (at);
create table history_execution partition of history for values in ('execution') partition by range (at);

-- The last batch of each appender, so that one whose outcome was not known is
-- applied once.
create table history_writer (
	id  text collate "C" primary key,
	seq bigint           not null,
	at  timestamptz      not null default clock_timestamp()
) with (fillfactor = 50);
