//! Pages of the process: its memory beside what the server tracks, its threads, and its tasks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::memory::{MemTracker, MemUsage};
use nyala_common::env::{BoxFuture, Env, ProcessStats, TaskStats, ThreadStats, WorkerStats};

use super::options::PageOptions;
use super::page::{PageBlock, PageCell, PageTable, Severity, WebPage, fact};
use super::registry::{PageRegistry, PageResult};

/// Registers the pages of the process, whose counts the environment has.
pub fn register(pages: &PageRegistry, env: &Env, tracked: &Arc<MemTracker>) {
    let (budget, tracked) = (env.memory.clone(), tracked.clone());
    let memory_page = move |_: PageOptions| -> BoxFuture<'static, PageResult> {
        let page = memory(&tracked.usage(), budget.process());
        Box::pin(async move { Ok(page.into()) })
    };
    pages.register("/memz", Some("Process memory"), Arc::new(memory_page));
    let (budget, tasks) = (env.memory.clone(), env.tasks.clone());
    let threads_page = move |_: PageOptions| -> BoxFuture<'static, PageResult> {
        let page = threads(&budget.threads(), tasks.workers());
        Box::pin(async move { Ok(page.into()) })
    };
    pages.register("/threadz", Some("Threads"), Arc::new(threads_page));
    let (budget, tasks) = (env.memory.clone(), env.tasks.clone());
    let stacks_page = move |_: PageOptions| -> BoxFuture<'static, PageResult> {
        let page = stacks(&tasks.all(), &budget.threads());
        Box::pin(async move { Ok(page.into()) })
    };
    pages.register("/stacks", Some("Tasks"), Arc::new(stacks_page));
}

/// Returns the memory of the process: resident, tracked, and the difference of the two.
pub fn memory(tracked: &MemUsage, process: Option<ProcessStats>) -> WebPage {
    let resident = process.map(|process| process.resident_bytes);
    let untracked = resident.map(|resident| PageCell::Bytes(resident.saturating_sub(tracked.bytes)));
    let facts = vec![
        fact("resident", "resident memory of the process", resident.map(PageCell::Bytes)),
        fact("tracked", "tracked memory", PageCell::Bytes(tracked.bytes)),
        fact("untracked", "resident, but not tracked", untracked),
        fact("peak", "largest tracked memory", PageCell::Bytes(tracked.peak_bytes)),
        fact("limit", "limit of tracked memory", tracked.limit.map(PageCell::Bytes)),
    ];
    let page = WebPage::new("Process memory");
    let page = match (resident, tracked.limit) {
        (Some(resident), Some(limit)) if resident > limit => {
            page.verdict(Severity::Warning, "the process has more memory than the limit")
        }
        (Some(_), Some(_)) => page.verdict(Severity::Good, "below the limit"),
        _ => page,
    };
    page.with(PageBlock::facts("memory", "Memory", facts))
}

/// Returns the threads with their CPU time, and those that run tasks.
pub fn threads(threads: &[ThreadStats], workers: Option<WorkerStats>) -> WebPage {
    let busy = threads.iter().filter(|thread| thread.state == 'R').count();
    let mut facts = vec![fact("threads", "threads", threads.len()), fact("running", "on a processor", busy)];
    let mut page = WebPage::new("Threads");
    if let Some(workers) = &workers {
        facts.push(fact("tasks", "tasks that have not ended", workers.tasks));
        facts.push(fact("queued", "tasks that wait for a worker", workers.queued));
    }
    page = page.with(PageBlock::facts("counts", "", facts));
    if let Some(workers) = workers {
        page = page.with(PageBlock::table("workers", "Workers, which run tasks", workers_table(&workers)));
    }
    page.with(PageBlock::table("threads", "Threads of the process", threads_table(threads)))
}

/// Returns the tasks with what each waits for, and the threads with the kernel's function in which each sleeps.
pub fn stacks(tasks: &[TaskStats], threads: &[ThreadStats]) -> WebPage {
    let running = tasks.iter().filter(|task| task.state.is_running()).count();
    let facts =
        vec![fact("tasks", "tasks that have not ended", tasks.len()), fact("running", "run now", running)];
    WebPage::new("Tasks")
        .with(PageBlock::facts("counts", "", facts))
        .with(PageBlock::table("groups", "Tasks by name and state", groups_table(tasks)))
        .with(PageBlock::table("tasks", "Tasks, the oldest first", tasks_table(tasks)))
        .with(PageBlock::table("threads", "Threads of the process", sleeps_table(threads)))
}

fn groups_table(tasks: &[TaskStats]) -> PageTable {
    let mut groups: BTreeMap<(&str, String), (usize, Option<Duration>)> = BTreeMap::new();
    for task in tasks {
        let (count, longest) = groups.entry((task.name, task.state.text())).or_default();
        *count += 1;
        *longest = (*longest).max(task.since);
    }
    let columns = [
        ("name", "Name"),
        ("waits", "Does, or waits for"),
        ("tasks", "Tasks"),
        ("longest", "Longest since a run"),
    ];
    let mut table = PageTable::new(&columns);
    for ((name, state), (count, longest)) in groups {
        table.row(vec![name.into(), state.into(), count.into(), longest.into()]);
    }
    table
}

fn tasks_table(tasks: &[TaskStats]) -> PageTable {
    let columns = [
        ("id", "Id"),
        ("name", "Name"),
        ("waits", "Does, or waits for"),
        ("since", "Since its last run began"),
        ("age", "Age"),
        ("runs", "Runs"),
    ];
    let mut table = PageTable::new(&columns);
    for task in tasks {
        table.row(vec![
            task.id.into(),
            task.name.into(),
            task.state.text().into(),
            task.since.into(),
            task.age.into(),
            task.polls.into(),
        ]);
    }
    table
}

fn sleeps_table(threads: &[ThreadStats]) -> PageTable {
    let columns = [("id", "Id"), ("name", "Name"), ("state", "State"), ("waits", "Sleeps in")];
    let mut table = PageTable::new(&columns);
    for thread in threads {
        table.row(vec![
            thread.id.to_string().into(),
            thread.name.clone().into(),
            state(thread.state),
            thread.waits_in.clone().into(),
        ]);
    }
    table
}

fn workers_table(workers: &WorkerStats) -> PageTable {
    let mut table = PageTable::new(&[("worker", "Worker"), ("busy", "In tasks")]);
    for (worker, busy) in workers.busy.iter().enumerate() {
        table.row(vec![worker.into(), PageCell::Time(*busy)]);
    }
    table
}

fn threads_table(threads: &[ThreadStats]) -> PageTable {
    let columns = [
        ("id", "Id"),
        ("name", "Name"),
        ("state", "State"),
        ("user", "CPU, user"),
        ("system", "CPU, system"),
    ];
    let mut table = PageTable::new(&columns);
    for thread in threads {
        let millis = |ms| PageCell::Time(Duration::from_millis(ms));
        table.row(vec![
            thread.id.to_string().into(),
            thread.name.clone().into(),
            state(thread.state),
            millis(thread.user_ms),
            millis(thread.system_ms),
        ]);
    }
    table
}

fn state(letter: char) -> PageCell {
    match letter {
        'R' => PageCell::State(Severity::Good, "running".to_owned()),
        'S' | 'I' => "sleeping".into(),
        'D' => PageCell::State(Severity::Warning, "waits for a device".to_owned()),
        'T' | 't' => PageCell::State(Severity::Warning, "stopped".to_owned()),
        other => other.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use nyala_common::env::TaskState;

    use super::*;
    use crate::server::pages::html::{self, PageFrame};
    use crate::server::pages::options::PageOptions;
    use crate::server::pages::{json, text};

    /// Returns the three forms of a page.
    fn rendered(page: &WebPage) -> String {
        let options = |query| PageOptions::parse(query).expect("a legal query");
        let frame = PageFrame { server: "master 07".to_owned(), menu: Vec::new(), path: "/".to_owned() };
        let html = html::render(page, &options(""), &frame);
        let html = html.replace(&html::static_path(""), "/static/<hash>/");
        let object = json::render(page, &options("format=json"));
        format!("{html}\n---\n{}\n---\n{object}\n", text::render(page, &options("raw")))
    }

    #[test]
    fn the_memory_of_a_process() {
        let tracked = MemUsage {
            id: "server".to_owned(),
            parent_id: None,
            limit: Some(6 << 20),
            bytes: 5 << 20,
            peak_bytes: 6 << 20,
            children: Vec::new(),
        };
        let process = ProcessStats { resident_bytes: 7 << 20, ..ProcessStats::default() };
        insta::assert_snapshot!("memory", rendered(&memory(&tracked, Some(process))));
        assert_eq!(memory(&tracked, None).verdict, None);
    }

    #[test]
    fn the_threads_of_a_process() {
        let thread = |id, name: &str, state| ThreadStats {
            id,
            name: name.to_owned(),
            state,
            waits_in: String::new(),
            user_ms: 1234,
            system_ms: 5,
        };
        let all = [thread(7, "nyala", 'S'), thread(8, "<tokio>", 'R'), thread(9, "log", 'D')];
        let busy = [1, 2].map(Duration::from_secs).to_vec();
        let workers = WorkerStats { busy, tasks: 30, queued: 1 };
        insta::assert_snapshot!("threads", rendered(&threads(&all, Some(workers))));
        assert_eq!(threads(&[], None).blocks.len(), 2);
    }

    #[test]
    fn the_tasks_of_a_process() {
        let task = |id, name, since, state| TaskStats {
            id,
            name,
            age: Duration::from_secs(70),
            polls: 3,
            since: Some(Duration::from_millis(since)),
            state,
        };
        let tasks = [
            task(1, "replica", 9, TaskState::WAITING),
            task(2, "<log>", 1, TaskState::RUNS),
            task(9, "replica", 3_000, TaskState::WAITING),
        ];
        let waits_in = "futex_wait_queue".to_owned();
        let thread =
            ThreadStats { id: 7, name: "<tokio>".to_owned(), state: 'S', waits_in, user_ms: 0, system_ms: 0 };
        insta::assert_snapshot!("stacks", rendered(&stacks(&tasks, &[thread])));
    }
}
