-- name: redactions
-- Everything that was declared secret.
select r.pattern, r.path from {hf}redaction r order by r.pattern, r.path

-- name: declare_redaction
-- Declares a field secret, if it is not yet.
insert into {hf}redaction (pattern, path) values (:pattern, :path) on conflict do nothing
