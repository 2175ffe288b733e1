"""Evidence that a device is slow, from looks that go on for as long as the device does.

In a look each device is timed by the same calls. A device is compared with

- ``peers``: the median of the other devices of its name in the node, where there are two or more
- ``past``: the median of its own looks before the last day, where there are eight or more; with
  peers, of its distance from them, which has no drift, season or hour of the day in it
- ``reference``: a figure of devices of its name

and the look is slow if it took more time than that by the margin, which is wider for a device whose
looks scatter. A healthy device has a slow look
at a chance of at most `HEALTHY`, whatever its looks before were, and a faulty one at about
`FAULTY`. The score of each comparison is a CUSUM (E. S. Page, Biometrika 41, 1954):

    score = max(0, score + log(FAULTY / HEALTHY))                after a slow look
    score = max(0, score + log((1 - FAULTY) / (1 - HEALTHY)))    after any other

A healthy device is looked at ``exp(limit)`` times or more, on average, before its score reaches the
limit (G. Lorden, Annals of Mathematical Statistics 42, 1971; it holds for dependent looks too, as
the likelihood ratios are an e-process: J. Shin, A. Ramdas, A. Rinaldo, "E-detectors", 2022). So the
limit follows from the rate of false alarms that is accepted, however often one looks.
"""

import fnmatch
import math

HEALTHY, FAULTY = 0.05, 0.8
SLOW_STEP = math.log(FAULTY / HEALTHY)
OTHER_STEP = math.log((1 - FAULTY) / (1 - HEALTHY))
MARGIN = 0.7
"""Of the slowdown that is to be found. Equal devices differ too: the margin is nearer to the faulty
ones, which vary as much.
"""
ALONE_MARGIN = 1.4
"""The same for the past of a device without peers, which drifts with the heat of room and season."""
COMPARISONS = ("peers", "past", "reference")
NOISE_MARGIN, NOISE_LOOKS = 2.0, 32
"""The least margin, in standard deviations of a look, which are estimated from the last looks."""
LEAST_PEERS, LEAST_PAST = 2, 8
RECENT_S, OLDEST_S = 86400, 28 * 86400
MOST_VALUES = 512


def score_limit(devices, metrics, looks_per_day, alarms_per_day):
    """Return the score from which a device is named, for so many false alarms of a node per day."""
    series = devices * metrics * len(COMPARISONS)
    return math.log(series * looks_per_day / alarms_per_day)


def slow_looks(limit):
    """Return how many slow looks in a row reach a limit."""
    return math.ceil(limit / SLOW_STEP)


def add_look(known, values, now, find, limit, references=(), recent_s=RECENT_S):
    """Add a look to what is known of devices.

    ``known`` is {device: {"name", "metrics": {metric: {"values": {"of peers" or "alone": [[time,
    value]]}, "scores": {comparison: {"score", "slow", "looks", "since", "named", "slower"}}}}}}, and
    is changed. ``values`` is {device: {metric: value}}, of which a larger one is faster;
    ``references`` are [pattern of names, metric, value, tolerance], the first that fits counts.
    Times are in seconds; ``find`` is a share, 0.05 is 5 % more time.
    """
    for device, of_device in values.items():
        for metric, value in of_device.items():
            state = known[device]["metrics"].setdefault(metric, {"values": {}, "scores": {}})
            peers = peer_level(known, values, device, metric)
            own, kind = (value / peers, "of peers") if peers else (value, "alone")
            earlier = state["values"].setdefault(kind, [])
            past = past_level(earlier, now, recent_s)
            figure = figure_of(known[device]["name"], metric, references)
            found, scatter = {}, NOISE_MARGIN * noise_of(earlier)
            if peers:
                found["peers"] = peers / value - 1, max(MARGIN * find, scatter)
            if past:
                margin = (MARGIN if peers else ALONE_MARGIN) * find
                found["past"] = past / own - 1, max(margin, scatter)
            if figure:
                found["reference"] = figure[0] / value - 1, figure[1]
            for key, (slower, margin) in found.items():
                weigh(state["scores"].setdefault(key, new_score()), slower, margin, limit, now)
            if not state["scores"].get("past", {}).get("named"):  # a fault is no past to return to
                state["values"][kind] = thin([*earlier, [now, own]], now, recent_s)


def figure_of(name, metric, references):
    """Return value and tolerance of the reference figure of a device, None without one."""
    for pattern, of_metric, value, tolerance in references:
        if of_metric == metric and fnmatch.fnmatchcase(name, pattern):
            return value, tolerance
    return None


def peer_level(known, values, device, metric):
    """Return the median of the other devices of the same name, None if they are too few."""
    others = [
        of_other[metric]
        for other, of_other in values.items()
        if other != device and metric in of_other and known[other]["name"] == known[device]["name"]
    ]
    return median(others) if len(others) >= LEAST_PEERS else None


def past_level(values, now, recent_s):
    """Return the median of the looks before the last day, None if they are too few."""
    settled = [value for when, value in values if when <= now - recent_s]
    return median(settled) if len(settled) >= LEAST_PAST else None


def noise_of(values):
    """Return the standard deviation of a look, as a share, by the median change from look to look,
    which a lasting change does not move; 0 of too few.
    """
    last = [value for _, value in values[-NOISE_LOOKS:]]
    if len(last) < LEAST_PAST:
        return 0.0
    changes = [abs(after / before - 1) for before, after in zip(last, last[1:])]
    return 1.4826 * median(changes) / math.sqrt(2)


def median(values):
    """Return the median; of an even number the mean of the two in the middle."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def new_score():
    """Return the score of a comparison that was never made. ``slow`` and ``looks`` count since the
    score was last 0, which was at the time ``since``.
    """
    return {"score": 0.0, "slow": 0, "looks": 0, "since": 0, "slower": [], "named": False}


def weigh(score, slower, margin, limit, now):
    """Add a look to a score. A device stays named until its score is 0 again: until good looks
    outweigh the slow ones. A score above the limit grows no further.
    """
    is_slow = slower > margin
    total = min(limit, score["score"] + (SLOW_STEP if is_slow else OTHER_STEP))
    if total <= 0:
        score.update(new_score())
        return
    if not score["looks"]:
        score["since"] = now
    score["score"] = total
    score["looks"] += 1
    if is_slow:
        score["slow"] += 1
        score["slower"] = [*score["slower"], round(slower, 4)][-16:]
    score["named"] = score["named"] or total >= limit


def thin(values, now, recent_s):
    """Return values without those older than four weeks, and every second one of those before the
    last day if they are too many.
    """
    kept = [entry for entry in values if entry[0] > now - OLDEST_S]
    if len(kept) > MOST_VALUES:
        settled = [entry for entry in kept if entry[0] <= now - recent_s]
        kept = settled[1::2] + kept[len(settled) :]
    return kept[-2 * MOST_VALUES :]
