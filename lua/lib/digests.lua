-- digests.lua: how the counts of dropped events are stored, for the scripts in summary/.
--
-- The counts of a channel are a hash with these fields:
--   <category>         counts of a first-level category for the next digest: a line with the number of drops on paths
--                      without an entry, then a line for each entry
--   line feed, head    counts of the whole channel for the next digest: "total first last unpaired paths partial
--                      claimed_at generation next_revision". paths is the number of entries. partial is 1 if some drops have no
--                      entry. claimed_at is when the latest digest was claimed. next_revision is the first change of a live limit
--                      that no digest of the channel has reported, in a generation of their bucket; 0 if it is unknown.
--   line feed, keys    of a mute: the last states of keys of its events, see keys_text
--   line feed, rounds  which rounds of which instances the counts for the next digest are from: "instance first last" for each
--                      instance, with blanks between. A round is what an instance took from its counter at once.
--   line feed, claimed the claimed digest, until it has ended: a line "claim state until failures", a line
--                      "total first last unpaired paths partial since at_least doubtful from_revision before_revision", a line
--                      with its rounds, and its largest entries. It reports the changes of live limits from one revision up to
--                      another one, exclusively.
--
-- The sorted set `top` has first-level category -> the largest of its entries' counts and of its drops without entry. A claim
-- finds the largest entries of the channel with it and does not read the whole hash. The sorted set `due` has channel ->
-- when its digest is due to be claimed.
--
-- States of a claimed digest:
--   posting   An instance has the lease until `until` and may have posted the digest. When the lease lapses, the state is
--             doubt.
--   failed    The digest was not posted. The next claim, due at `until`, takes its counts over.
--   doubt     The digest may have been posted. From `until` on, an instance looks for it in its channel, and records
--             what it has found. No digest of the channel is claimed until then.
--   carried   The digest may have been posted, and nobody can look. The next digest takes its counts over.
--
-- An entry is a line of values with a tab behind each: path, count, when the path's next slot opens (0: unknown), title, then
-- name and count of each level that denied events. Drops without entry are shown in an entry with the path
-- "<first-level category>.>". Times are microseconds.

local HEAD, ROUNDS, CLAIMED, MUTED_KEYS = '\nhead', '\nrounds', '\nclaimed', '\nkeys'
local HEAD_NAMES = { 'total', 'first', 'last', 'unpaired', 'paths', 'partial', 'claimed_at', 'generation', 'next_revision' }
local DIGEST_NAMES = {
  'total', 'first', 'last', 'unpaired', 'paths', 'partial', 'since', 'at_least', 'doubtful', 'from_revision', 'before_revision',
}

-- How many levels an entry counts. The same as MaxDropLevels in Go.
local MOST_LEVELS = 8

-- How many keys of a mute are remembered. The same as maxKeys in Go.
local MOST_KEYS = 100

-- The number of instances with stored rounds: the newest.
local MOST_INSTANCES = 200

local function read_numbers(text, names)
  local values, numbers = {}, {}
  for number in string.gmatch(text or '', '%d+') do
    numbers[#numbers + 1] = tonumber(number)
  end
  for i, name in ipairs(names) do
    values[name] = numbers[i] or 0
  end
  return values
end

local function numbers_text(values, names)
  local texts = {}
  for i, name in ipairs(names) do
    texts[i] = integer(values[name])
  end
  return table.concat(texts, ' ')
end

local function read_rounds(text)
  local rounds = {}
  for instance, first, last in string.gmatch(text or '', '(%S+) (%d+) (%d+)') do
    rounds[#rounds + 1] = { instance = instance, first = tonumber(first), last = tonumber(last) }
  end
  return rounds
end

local function rounds_text(rounds)
  local texts = {}
  for i, of in ipairs(rounds) do
    texts[i] = of.instance .. ' ' .. integer(of.first) .. ' ' .. integer(of.last)
  end
  return table.concat(texts, ' ')
end

local function add_rounds(rounds, instance, first, last)
  for _, of in ipairs(rounds) do
    if of.instance == instance then
      of.first, of.last = math.min(of.first, first), math.max(of.last, last)
      return
    end
  end
  if #rounds >= MOST_INSTANCES then
    table.remove(rounds, 1)
  end
  rounds[#rounds + 1] = { instance = instance, first = first, last = last }
end

-- Reads what keys_text has written.
local function read_keys(text)
  local keys = { more = string.sub(text or '', 1, 1) == '+', by_name = {} }
  for at, firing, name, title in string.gmatch(text or '', '\n(%d+)\t([01])\t([^\t\n]*)\t([^\n]*)') do
    local key = { at = tonumber(at), firing = firing, name = name, title = title }
    keys[#keys + 1], keys.by_name[name] = key, key
  end
  return keys
end

-- Returns '+' if there are more keys that fire, otherwise '-', and a line for each key: "time firing name title" with tabs between.
local function keys_text(keys)
  local lines = { keys.more and '+' or '-' }
  for _, key in ipairs(keys) do
    lines[#lines + 1] = table.concat({ integer(key.at), key.firing, key.name, key.title }, '\t')
  end
  return table.concat(lines, '\n')
end

-- Notes the state of a key. The state of the event that was stored last counts. Beyond MOST_KEYS, a key that no longer fires gives way.
local function add_key(keys, key)
  local known = keys.by_name[key.name]
  if known then
    if key.at >= known.at then
      known.at, known.firing, known.title = key.at, key.firing, key.title
    end
    return
  end
  if #keys >= MOST_KEYS then
    local ended
    for i, other in ipairs(keys) do
      ended = ended or other.firing == '0' and i
    end
    if not ended then
      keys.more = keys.more or key.firing == '1'
      return
    end
    keys.by_name[table.remove(keys, ended).name] = nil
  end
  keys[#keys + 1], keys.by_name[key.name] = key, key
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

-- Reads entries in their order. Skips malformed lines.
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
  local claim, state, lease_end, failures, numbers, rounds, entries =
    string.match(text or '', '^(%w+) (%w+) (%d+) (%d+)\n([%d ]*)\n([^\n]*)(.*)$')
  if not claim then
    return nil
  end
  local digest = read_numbers(numbers, DIGEST_NAMES)
  digest.claim, digest.state, digest.lease_end = claim, state, tonumber(lease_end)
  digest.failures, digest.rounds, digest.entries = tonumber(failures), read_rounds(rounds), read_entries(entries)
  return digest
end

local function claimed_text(digest)
  local head = { digest.claim, digest.state, integer(digest.lease_end), integer(digest.failures) }
  local lines = { table.concat(head, ' '), numbers_text(digest, DIGEST_NAMES), rounds_text(digest.rounds) }
  return table.concat(lines, '\n') .. entries_text(digest.entries)
end

-- How long ago a digest counts as claimed, beyond an interval, if the clock has stepped back since.
local LONG_AGO = 3600 * SECOND

-- Reads the head of a channel. If the clock has stepped back by more than TOLERANCE, its times lie ahead. Then the drops count as
-- of now, and the digest before as old enough for another one.
local function read_head(text, now, interval)
  local head = read_numbers(text, HEAD_NAMES)
  local latest = now + TOLERANCE
  if head.claimed_at > latest then
    head.claimed_at = now - interval - LONG_AGO
  end
  head.first = head.first > latest and now or head.first
  head.last = head.last > latest and now or head.last
  return head
end

-- Returns the latest time at which a channel can be due. A later time is of a clock that has stepped back, or of a long back-off, and
-- is due.
local function latest_due(now, interval, lease)
  return now + math.max(interval, lease) + TOLERANCE
end

-- Returns when the counts of a channel are due: `quiet` after the last drop, but at most `interval` after the first drop, and
-- at least `interval` after the digest before. Returns nil if there are no counts.
local function counts_due(head, interval, quiet)
  if head.total == 0 then
    return nil
  end
  local not_before = head.claimed_at > 0 and head.claimed_at + interval or 0
  return math.max(math.min(head.first + interval, head.last + quiet), not_before)
end

-- Returns when a channel needs attention: at the end of the claimed digest's lease or back-off, when a digest in doubt is worth a
-- look, otherwise when its counts are due.
local function channel_due(head, claimed, interval, quiet)
  if claimed and claimed.state ~= 'carried' then
    return claimed.lease_end
  end
  return counts_due(head, interval, quiet)
end

-- Renews the expiry of the channels' due times, which shows missing rights before any change.
local function check_due(due_key, kept)
  check_rights(due_key, kept)
  redis.call('ZADD', due_key, 'XX', 0, '')
end

-- Records when a channel is due or that it is not, and keeps the due times for `kept` microseconds.
local function set_due(due_key, channel, due, kept)
  if due then
    redis.call('ZADD', due_key, integer(due), channel)
  else
    redis.call('ZREM', due_key, channel)
  end
  redis.call('PEXPIRE', due_key, milliseconds(kept))
end

-- Returns the end of the time span with complete counts. An instance that drops events reports at least once before its
-- deadline in `dropping`. What it counted since its last report, `report_within` before the deadline, is missing.
local function complete_until(dropping_key, now, report_within)
  local next_deadline =
    redis.call('ZRANGE', dropping_key, '(' .. integer(now), '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
  return next_deadline and math.min(now, tonumber(next_deadline) - report_within) or now
end
