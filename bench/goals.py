"""What each figure is to reach, and how it is called in the table."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Goal:
    """One row. `limit` is a bound from above or, where more is better, from below; None is only shown."""

    figure: str
    title: str
    unit: str
    limit: float | None = None
    more_is_better: bool = False

    def is_met(self, value: float) -> bool | None:
        if self.limit is None:
            return None
        return value >= self.limit if self.more_is_better else value <= self.limit


GOALS = (
    Goal("turn_c1_p50_ms", "plain turn, 1 at a time, p50", "ms", 7),
    Goal("turn_c8_per_s", "plain turns, 8 at a time", "/s", None, True),
    Goal("turn_c32_per_s", "plain turns, 32 at a time", "/s", 310, True),
    Goal("turn_c32_p99_ms", "plain turns, 32 at a time, p99", "ms", 200),
    Goal("turn_c32_ack_p99_ms", "plain turns, 32 at a time, acknowledged p99", "ms", 60),
    Goal("turn_c1_cpu_ms", "CPU per plain turn, 1 at a time", "ms", 5),
    Goal("turn_c32_cpu_ms", "CPU per plain turn, 32 at a time", "ms", 5),
    Goal("tool_turn_c8_per_s", "turns with one local tool, 8 at a time", "/s", 150, True),
    Goal("worker_turn_p50_ms", "turn with one tool call through a worker, p50", "ms", 25),
    Goal("worker_turn_p99_ms", "turn with one tool call through a worker, p99", "ms"),
    Goal("worker_cycles_per_s", "claim, accept, complete; 16 workers", "/s", 900, True),
    Goal("worker_cycle_p99_ms", "claim, accept, complete; 16 workers, p99", "ms", 60),
    Goal("worker_cycle_cpu_ms", "CPU per claim, accept, complete", "ms"),
    Goal("idle_workers_cpu_percent", "CPU of 2,000 idle workers", "% of a core", 5),
    Goal("long_turn_p50_ms", "turn on a session of 5,000 events, p50", "ms", 12),
    Goal("append_c8_per_s", "append one event, 8 at a time", "/s", 2000, True),
    Goal("session_create_c8_per_s", "session create, 8 at a time", "/s", 1200, True),
    Goal("session_list_p50_ms", "session list, 20 of 10,000, p50", "ms", 1.3),
    Goal("session_list_c8_per_s", "session list, 8 at a time", "/s", 1600, True),
    Goal("agent_create_c8_per_s", "agent create, 8 at a time", "/s", 1000, True),
    Goal("agent_create_growth", "agent create, second half against first", "x", 0.85, True),
    Goal("agent_read_c8_per_s", "agent retrieve, 8 at a time", "/s", 2600, True),
    Goal("agent_list_p50_ms", "agent list page, p50", "ms", 2),
    Goal("page_events_per_s", "event pages of 100", "events/s", 100_000, True),
    Goal("replay_c8_events_per_s", "replay of 5,000 events, 8 at once", "events/s", 170_000, True),
    Goal("fan_500_on_1_p99_ms", "500 streams on one session, delivery p99", "ms", 18),
    Goal("fan_500_on_50_p99_ms", "500 streams on 50 sessions, delivery p99", "ms", 6),
    Goal("upload_c1_mb_per_s", "upload of 9 MB, 1 at a time", "MB/s", 168, True),
    Goal("upload_c4_mb_per_s", "upload of 9 MB, 4 at a time", "MB/s", None, True),
    Goal("download_c1_mb_per_s", "download of 9 MB, 1 at a time", "MB/s", 300, True),
    Goal("download_c4_mb_per_s", "download of 9 MB, 4 at a time", "MB/s", None, True),
    Goal("upload_c1_cpu_ms", "CPU per upload of 9 MB", "ms"),
    Goal("download_c1_cpu_ms", "CPU per download of 9 MB", "ms"),
    Goal("files_rss_growth_mb", "growth of memory by 160 files of 9 MB, up to 4 at a time", "MB", 60),
    Goal("idle_stream_kb", "memory of an idle stream", "KB", 20),
    Goal("idle_streams_cpu_percent", "CPU of 1,000 idle streams", "% of a core", 1),
    Goal("start_seconds", "start to healthy, data present, embedded servers", "s", 3),
    Goal("start_external_seconds", "start to healthy, data present, external servers", "s", 1.5),
    Goal("stop_seconds", "stop", "s"),
    Goal("idle_python_rss_mb", "memory of our Python processes, idle", "MB", 350),
    Goal("idle_python_pss_mb", "the same, shared pages counted once", "MB"),
    Goal("loaded_python_rss_mb", "memory of our Python processes, after load", "MB", 500),
    Goal("fixed_work_ms", "the machine meanwhile: a fixed piece of Python", "ms"),
)
