-- count_drops.lua: adds the drops that an instance has counted for one channel to the counts of all instances.
--
-- Every drop counts in the channel's total and, unless it was unpaired, in the count of its first-level category. A path gets an
-- entry while its first-level category has room for entries. Then a larger entry displaces the smallest one. A category cannot
-- displace entries of another category.
--
-- KEYS
--   1   calls           sorted set: nonce of a call that granted something -> its time
--   2   drops:due       sorted set: channel -> when its digest is due to be claimed
--   3   drops:dropping  sorted set: instance that may have unreported counts -> deadline of its next report. An instance that
--                       missed its deadline was killed.
--   4   drops:merged    sorted set: instance -> number of its newest report
--   5   drops:counts:…  hash: the counts of the channel (see lib/digests.lua)
--   6   drops:top:…     sorted set: first-level category -> its largest count (see lib/digests.lua)
--
-- ARGV
--   instance, number of the report (microseconds of the instance's clock; each report has a larger number), number of the round
--   whose counts it has (see lib/digests.lua)
--   report_within: time until the deadline of the next report, 0 if the instance has no unreported counts (microseconds)
--   interval: time between digests of a channel, and from the first drop to the digest at most; quiet: time from the last drop
--   to the digest; kept: retention of the counts (microseconds)
--   how many first-level categories a channel may have; how many entries each of them may have
--   channel; '' if nothing was dropped, and then nothing follows
--   age of the first and of the last drop (microseconds), number of unpaired drops, number of drops without a first-level
--   category; 1 if more keys of a mute fire; number of keys; for each key: its name, when its event was stored (microseconds of
--   another clock), 1 if it fires, otherwise 0, and the title of the event
--   for each first-level category: its name, number of drops without an entry, number of entries; for each entry: path, count,
--   time until its next slot opens or 0 (microseconds), title, number of levels; for each level: its name and count
--
-- Returns 1, and 0 for a retry after a lost reply, whose report was counted before.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is counted.

--@include lib/records lib/digests

local calls_key, due_key, dropping_key, merged_key, counts_key, top_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local next_argument = reader(ARGV, 0)
local function next_count()
  return tonumber(next_argument())
end
local instance, report, round, report_within = next_argument(), next_argument(), next_count(), next_count()
local interval, quiet, kept = next_count(), next_count(), next_count()
local most_groups, most_entries, channel = next_count(), next_count(), next_argument()

local now = deployment_time(calls_key)
redis.call('ZCARD', due_key)
redis.call('ZCARD', dropping_key)
local last_report = redis.call('ZSCORE', merged_key, instance)
if last_report and tonumber(last_report) >= tonumber(report) then
  return 0
end

local head, fields, tops, due = nil, {}, {}, nil

-- Adds an entry to its category. If the category is full, the smallest entry becomes drops without entry.
local function add_entry(group, entry)
  local known = group.by_path[entry.path]
  if known then
    merge_entry(known, entry)
    return
  end
  local at = #group.entries + 1
  if at > most_entries then
    at = 1
    for i, other in ipairs(group.entries) do
      at = other.count < group.entries[at].count and i or at
    end
    local smallest = group.entries[at]
    head.partial = 1
    if entry.count <= smallest.count then
      group.more = group.more + entry.count
      return
    end
    group.more = group.more + smallest.count
    group.by_path[smallest.path] = nil
  else
    head.paths = head.paths + 1
  end
  group.entries[at], group.by_path[entry.path] = entry, entry
end

local function read_group_argument()
  local more, entries = next_count(), {}
  for i = 1, next_count() do
    local entry = new_entry(next_argument(), next_count(), next_count(), next_argument())
    entry.opens = entry.opens > 0 and now + entry.opens or 0
    for _ = 1, next_count() do
      local level = next_argument()
      count_level(entry, level, next_count())
    end
    entries[i] = entry
  end
  return more, entries
end

local function count_group(name, group_count)
  local more, entries = read_group_argument()
  local text = redis.call('HGET', counts_key, name)
  local group = read_group(text or '')
  group.more = group.more + more
  head.total = head.total + more
  if more > 0 then
    head.partial = 1
  end
  for _, entry in ipairs(entries) do
    head.total = head.total + entry.count
    if text or group_count < most_groups then
      add_entry(group, entry)
    else
      head.partial = 1
    end
  end
  if not text and group_count >= most_groups then
    return group_count
  end
  local largest = group.more
  for _, entry in ipairs(group.entries) do
    largest = math.max(largest, entry.count)
  end
  fields[#fields + 1] = name
  fields[#fields + 1] = group_text(group)
  tops[#tops + 1] = integer(largest)
  tops[#tops + 1] = name
  return text and group_count or group_count + 1
end

if channel ~= '' then
  local first, last = now - next_count(), now - next_count()
  local unpaired, without_group = next_count(), next_count()
  head = read_head(redis.call('HGET', counts_key, HEAD), now, interval)
  head.first = head.total > 0 and math.min(head.first, first) or first
  head.last = math.max(head.last, last)
  head.unpaired = head.unpaired + unpaired
  head.total = head.total + unpaired + without_group
  if without_group > 0 then
    head.partial = 1
  end
  local has_more_keys, key_count = next_count() == 1, next_count()
  if has_more_keys or key_count > 0 then
    local keys = read_keys(redis.call('HGET', counts_key, MUTED_KEYS))
    for _ = 1, key_count do
      local name, at = next_argument(), next_count()
      add_key(keys, { name = name, at = at, firing = next_argument(), title = next_argument() })
    end
    keys.more = keys.more or has_more_keys
    fields[#fields + 1] = MUTED_KEYS
    fields[#fields + 1] = keys_text(keys)
  end
  local group_count = redis.call('ZCARD', top_key)
  for name in next_argument do
    group_count = count_group(name, group_count)
  end
  local rounds = read_rounds(redis.call('HGET', counts_key, ROUNDS))
  add_rounds(rounds, instance, round, round)
  fields[#fields + 1] = ROUNDS
  fields[#fields + 1] = rounds_text(rounds)
  fields[#fields + 1] = HEAD
  fields[#fields + 1] = numbers_text(head, HEAD_NAMES)
  due = channel_due(head, read_claimed(redis.call('HGET', counts_key, CLAIMED)), interval, quiet)
end

check_due(due_key, kept)
local trim = new_trimmer()
trim(dropping_key, integer(now - kept), 1)
trim(merged_key, integer(now - kept), 1)
if channel ~= '' then
  in_pieces('HSET', counts_key, fields)
  redis.call('PEXPIRE', counts_key, milliseconds(kept))
  add_for(top_key, tops, milliseconds(kept))
  set_due(due_key, channel, due, kept)
end
if report_within > 0 then
  redis.call('ZADD', dropping_key, integer(now + report_within), instance)
else
  redis.call('ZREM', dropping_key, instance)
end
redis.call('PEXPIRE', dropping_key, milliseconds(kept))
redis.call('ZADD', merged_key, report, instance)
redis.call('PEXPIRE', merged_key, milliseconds(kept))
return 1
