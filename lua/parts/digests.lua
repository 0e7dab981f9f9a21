-- digests.lua: what is kept of drops for each channel, for the scripts that count drops and that tell of them.
--
-- The counts of a channel are a hash with these fields:
--   a first-level category    its counts for the digest to come: a line with the number of drops of paths that have no entry,
--                             and an entry for each path that has one
--   line feed, head           the counts of the channel for the digest to come: "total first last unpaired paths partial told".
--                             paths is the number of entries, partial is 1 if some drops have no entry, told is when the
--                             latest digest was claimed
--   line feed, claimed        the digest that was claimed, until it is over: a line "claim state until failures", a line
--                             "total first last unpaired paths partial since at_least doubtful", and its largest entries
--
-- A sorted set, top, has each first-level category with the largest number among its entries and its drops without one. So
-- the largest entries of a channel are found without reading all. A sorted set, due, has each channel with the time at
-- which its digest is to be claimed.
--
-- The states of a claimed digest:
--   posting   it may have been posted. Once its lease (until) has lapsed, nobody knows, and it is in doubt
--   failed    it was not posted. It goes into the next claim, which is due at until
--   doubt     it is not posted again. Its counts go into the next digest, whenever there is one
--
-- An entry is a line of values, each followed by a tab: path, count, when its next slot opens (0: not known), title, and for
-- each level that denied events its name and count. The path of an entry for the drops that have no entry of their own is the
-- first-level category and ".>". Times are microseconds.

local HEAD, CLAIMED = '\nhead', '\nclaimed'
local HEAD_NAMES = { 'total', 'first', 'last', 'unpaired', 'paths', 'partial', 'told' }
local DIGEST_NAMES = { 'total', 'first', 'last', 'unpaired', 'paths', 'partial', 'since', 'at_least', 'doubtful' }

-- How many levels an entry counts by name.
local MOST_LEVELS = 8

local function read_numbers(text, names)
  local record, numbers = {}, {}
  for number in string.gmatch(text or '', '%d+') do
    numbers[#numbers + 1] = tonumber(number)
  end
  for i, name in ipairs(names) do
    record[name] = numbers[i] or 0
  end
  return record
end

local function numbers_text(record, names)
  local texts = {}
  for i, name in ipairs(names) do
    texts[i] = integer(record[name])
  end
  return table.concat(texts, ' ')
end

local function count_level(entry, name, count)
  if not entry.by_level[name] then
    if #entry.levels >= MOST_LEVELS then
      return
    end
    entry.levels[#entry.levels + 1] = name
  end
  entry.by_level[name] = (entry.by_level[name] or 0) + count
end

local function new_entry(path, count, opens, title)
  return { path = path, count = count, opens = opens, title = title, levels = {}, by_level = {} }
end

local function merge_entry(entry, other)
  entry.count = entry.count + other.count
  entry.opens = math.max(entry.opens, other.opens)
  entry.title = other.title ~= '' and other.title or entry.title
  for _, level in ipairs(other.levels) do
    count_level(entry, level, other.by_level[level])
  end
end

local function entry_text(entry)
  local values = { entry.path, integer(entry.count), integer(entry.opens), entry.title }
  for _, level in ipairs(entry.levels) do
    values[#values + 1] = level
    values[#values + 1] = integer(entry.by_level[level])
  end
  return '\n' .. table.concat(values, '\t') .. '\t'
end

-- Reads entries, in their order. A line that is none is left out.
local function read_entries(text)
  local entries = {}
  for line in string.gmatch(text, '\n([^\n]+)') do
    local values = {}
    for value in string.gmatch(line, '([^\t]*)\t') do
      values[#values + 1] = value
    end
    local count, opens = tonumber(values[2]), tonumber(values[3])
    if count and opens and values[4] then
      local entry = new_entry(values[1], count, opens, values[4])
      for i = 5, #values - 1, 2 do
        count_level(entry, values[i], tonumber(values[i + 1]) or 0)
      end
      entries[#entries + 1] = entry
    end
  end
  return entries
end

local function entries_text(entries)
  local texts = {}
  for i, entry in ipairs(entries) do
    texts[i] = entry_text(entry)
  end
  return table.concat(texts)
end

local function read_group(text)
  local group = { more = tonumber(string.match(text, '^%d+') or 0), entries = read_entries(text), by_path = {} }
  for _, entry in ipairs(group.entries) do
    group.by_path[entry.path] = entry
  end
  return group
end

local function group_text(group)
  return integer(group.more) .. entries_text(group.entries)
end

local function read_claimed(text)
  local claim, state, lease_end, failures, numbers, entries =
    string.match(text or '', '^(%w+) (%w+) (%d+) (%d+)\n([%d ]*)(.*)$')
  if not claim then
    return nil
  end
  local digest = read_numbers(numbers, DIGEST_NAMES)
  digest.claim, digest.state, digest.lease_end = claim, state, tonumber(lease_end)
  digest.failures, digest.entries = tonumber(failures), read_entries(entries)
  return digest
end

local function claimed_text(digest)
  local head = { digest.claim, digest.state, integer(digest.lease_end), integer(digest.failures) }
  return table.concat(head, ' ') .. '\n' .. numbers_text(digest, DIGEST_NAMES) .. entries_text(digest.entries)
end

-- When the counts of a channel are due: when its drops are over, or an interval after the first of them, but not within an
-- interval after the digest before. nil if there are none.
local function counts_due(head, interval, quiet)
  if head.total == 0 then
    return nil
  end
  local not_before = head.told > 0 and head.told + interval or 0
  return math.max(math.min(head.first + interval, head.last + quiet), not_before)
end

-- When somebody has to look at a channel: first at the digest that is claimed, then at the counts.
local function channel_due(head, claimed, interval, quiet)
  if claimed and claimed.state ~= 'doubt' then
    return claimed.lease_end
  end
  return counts_due(head, interval, quiet)
end

local function set_due(due_key, channel, due)
  if due then
    redis.call('ZADD', due_key, integer(due), channel)
  else
    redis.call('ZREM', due_key, channel)
  end
end

-- The time up to which all counts are told: each instance that is dropping has told what it had counted by then, or is not
-- believed any more.
local function all_told_until(dropping_key, now, believed)
  local next_end =
    redis.call('ZRANGE', dropping_key, '(' .. integer(now), '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
  return next_end and math.min(now, tonumber(next_end) - believed) or now
end
