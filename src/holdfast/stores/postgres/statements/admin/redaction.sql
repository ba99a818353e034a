-- name: redactions
-- All declared secret fields.
select r.pattern, r.path from {hf}redaction r order by r.pattern, r.path

-- name: declare_redaction
-- Declares a field secret unless it already is.
insert into {hf}redaction (pattern, path) values (:pattern::text, :path::text) on conflict do nothing
