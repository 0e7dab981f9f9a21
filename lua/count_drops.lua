-- count_drops.lua: adds what an instance has dropped to the counts of all instances, for the summaries.
--
-- KEYS
--   1  calls     sorted set: call that granted something -> its time
--   2  drops     hash: category -> counts of the summary to come; category and line feed -> the summary that was claimed,
--                see claim_summary.lua. Counts are a text: "total first last opens not_before", and a line for each name
--                counted, "count kind name" without a blank behind the kind; times are microseconds, 0 for none
--   3  due       sorted set: field of drops -> when it is due: to be claimed, claimed again, or forgotten
--   4  dropping  sorted set: instance that may have counts which it has not told -> until when that is believed. One that is
--                found behind its time was killed with them
--   5  merged    sorted set: instance -> number of the last report that was counted
--
-- ARGV
--   instance, number of the report (microseconds of its clock, each later than the one before)
--   believed: for how long the instance goes on to drop; 0 if it has told all (microseconds)
--   interval: between summaries of a category, and at most from its first drop; quiet: from its last drop; kept: how long
--   all this is (microseconds)
--   how many fields drops may get; how many names of each kind a category may have, what is above is in the total alone
--   for each category: its name, total, age of its first and of its last drop, time until its next slot opens or 0
--   (microseconds), number of names; for each name: the letter of its kind and the name, its count
--
-- Returns how many drops were left out because there were too many categories. A report that was counted before changes
-- nothing: it is repeated because its reply was lost.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is counted.

local calls_key, drops_key, due_key, dropping_key, merged_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local next_argument = reader(ARGV, 0)
local instance, report, believed = next_argument(), next_argument(), tonumber(next_argument())
local interval, quiet, kept = tonumber(next_argument()), tonumber(next_argument()), tonumber(next_argument())
local max_fields, max_names = tonumber(next_argument()), tonumber(next_argument())

local now = deployment_time(calls_key)
local field_count = redis.call('HLEN', drops_key)
redis.call('ZCARD', due_key)
redis.call('ZCARD', dropping_key)
local last_report = redis.call('ZSCORE', merged_key, instance)
if last_report and tonumber(last_report) >= tonumber(report) then
  return 0
end

local function count_name(counts, name, count)
  if not counts[name] then
    local kind = string.sub(name, 1, 1)
    counts.distinct[kind] = (counts.distinct[kind] or 0) + 1
    if counts.distinct[kind] > max_names then
      return
    end
    counts.names[#counts.names + 1] = name
  end
  counts[name] = (counts[name] or 0) + count
end

local function load_counts(text)
  local counts, head = { names = {}, distinct = {} }, {}
  for number in string.gmatch(string.match(text, '^[^\n]*'), '%d+') do
    head[#head + 1] = tonumber(number)
  end
  counts.total, counts.first, counts.last = head[1] or 0, head[2] or 0, head[3] or 0
  counts.opens, counts.not_before = head[4] or 0, head[5] or 0
  for count, name in string.gmatch(text, '\n(%d+) ([^\n]+)') do
    count_name(counts, name, tonumber(count))
  end
  return counts
end

local function text_of(counts)
  local head = {}
  for i, number in ipairs({ counts.total, counts.first, counts.last, counts.opens, counts.not_before }) do
    head[i] = integer(number)
  end
  local lines = { table.concat(head, ' ') }
  for i, name in ipairs(counts.names) do
    lines[i + 1] = integer(counts[name]) .. ' ' .. name
  end
  return table.concat(lines, '\n')
end

local function add_report(counts)
  local total, first = tonumber(next_argument()), now - tonumber(next_argument())
  local last, opens_after = now - tonumber(next_argument()), tonumber(next_argument())
  counts.first = counts.total > 0 and math.min(counts.first, first) or first
  counts.last = math.max(counts.last, last)
  counts.total = counts.total + total
  if opens_after > 0 then
    counts.opens = math.max(counts.opens, now + opens_after)
  end
  for _ = 1, tonumber(next_argument()) do
    local name = next_argument()
    count_name(counts, name, tonumber(next_argument()))
  end
end

local fields, dues, left_out = {}, {}, 0
for category in next_argument do
  local text = redis.call('HGET', drops_key, category)
  local counts = load_counts(text or '')
  add_report(counts)
  if text or field_count < max_fields then
    field_count = text and field_count or field_count + 1
    fields[#fields + 1] = category
    fields[#fields + 1] = text_of(counts)
    local ends = math.min(counts.first + interval, counts.last + quiet)
    dues[#dues + 1] = integer(math.max(ends, counts.not_before))
    dues[#dues + 1] = category
  else
    left_out = left_out + counts.total
  end
end

check_rights(due_key, kept)
redis.call('ZADD', due_key, 'XX', 0, '')
redis.call('ZREMRANGEBYSCORE', dropping_key, '-inf', integer(now - kept))
redis.call('ZREMRANGEBYSCORE', merged_key, '-inf', integer(now - kept))
in_pieces('HSET', drops_key, fields)
redis.call('PEXPIRE', drops_key, milliseconds(kept))
in_pieces('ZADD', due_key, dues)
redis.call('PEXPIRE', due_key, milliseconds(kept))
if believed > 0 then
  redis.call('ZADD', dropping_key, integer(now + believed), instance)
else
  redis.call('ZREM', dropping_key, instance)
end
redis.call('PEXPIRE', dropping_key, milliseconds(kept))
redis.call('ZADD', merged_key, report, instance)
redis.call('PEXPIRE', merged_key, milliseconds(kept))
return left_out
