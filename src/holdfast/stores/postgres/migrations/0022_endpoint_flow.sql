-- The rate of a webhook endpoint becomes flow control of its consumer, with its concurrency as the limit. endpoint.rate
-- stays for older workers and is not used.
update {hf}consumer c
set flow = '{"limit":' || e.concurrency || ',"rate":['
           || case when e.rate >= 1 then round(e.rate)::text || ',1.0' else '1,' || round((1 / e.rate)::numeric, 3)::text end
           || ']}'
from {hf}endpoint e
where e.consumer = c.name and e.rate is not null and c.flow is null;
