-- fragment: token
t.id, t.name, t.scope, t.prefix, t.created_at, t.created_by, t.expires_at, t.last_used_at, t.revoked_at, t.revoked_by,
t.revoked_at is null and (t.expires_at is null or t.expires_at > now()) as valid

-- name: add_token
-- Stores the hash of a token, unless a valid token has its name.
insert into {hf}token (id, name, scope, hash, prefix, created_by, expires_at)
values (:id::text, :name::text, :scope::text, :hash::text, :prefix::text, :actor::text, now() + :expires::interval)
on conflict (name) where revoked_at is null do nothing
returning id

-- name: tokens
-- All tokens, oldest first.
select {token} from {hf}token t order by t.created_at, t.id

-- name: find_token
-- The token with this hash, and whether to record its use: not with a read-only role or server.
select {token}, (t.last_used_at is null or t.last_used_at < now() - interval '1 minute')
       and has_column_privilege(t.tableoid, 'last_used_at', 'UPDATE') and not pg_is_in_recovery()
       and current_setting('default_transaction_read_only') = 'off' as needs_record
from {hf}token t where t.hash = :hash::text

-- name: use_token
-- Records the use of a token, once a minute.
update {hf}token set last_used_at = now()
where id = :id::text and (last_used_at is null or last_used_at < now() - interval '1 minute')

-- name: revoke_token
-- Revokes a token by its id or by the name of a valid token.
update {hf}token set revoked_at = now(), revoked_by = :actor::text
where (id = :token::text or name = :token::text) and revoked_at is null
returning id, name
