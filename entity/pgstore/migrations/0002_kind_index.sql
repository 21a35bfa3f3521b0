-- By which attributes the entities of a kind are indexed; see reindex.go.
create table kind_index (
	kind        text collate "C" primary key,
	fingerprint text not null
);
