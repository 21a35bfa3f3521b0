-- The indexed values that a change took from its entity, so that a watch by
-- value can tell that the entity left. CBOR of record.go.
alter table log add column departed bytea;
