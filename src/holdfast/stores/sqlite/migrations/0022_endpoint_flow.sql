-- The rate of a webhook endpoint becomes flow control of its consumer, with its concurrency as the limit. endpoint.rate
-- stays for older workers and is not used.
update {hf}consumer
set flow = (
  select '{"limit":' || e.concurrency || ',"rate":['
         || case when e.rate >= 1 then cast(round(e.rate) as integer) || ',1.0' else '1,' || round(1 / e.rate, 3) end
         || ']}'
  from {hf}endpoint e where e.consumer = name)
where flow is null and name in (select e.consumer from {hf}endpoint e where e.rate is not null);
