-- Outcomes by request id are found in the log, and dropped with it: an id is in
-- the first entry of its transaction, with a hash of what was asked.
alter table log add column request text collate "C", add column request_hash bytea;
create index log_request on log (request) where request is not null;
drop table request;
