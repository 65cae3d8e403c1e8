//! Steps: each announced, timed and counted; the last line has the numbers of passed and failed ones.

use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::Result;

/// Steps that have run.
#[derive(Default)]
pub(crate) struct Steps {
    results: Vec<StepResult>,
}

struct StepResult {
    name: String,
    seconds: f64,
    passed: bool,
}

impl StepResult {
    fn of(name: &str, work: impl FnOnce() -> Result<()>) -> StepResult {
        println!("--- {name}");
        let start = Instant::now();
        let result = work();
        let seconds = start.elapsed().as_secs_f64();
        match &result {
            Ok(()) => println!("ok   {name} ({seconds:.1} s)"),
            Err(error) => println!("FAIL {name} ({seconds:.1} s): {error:#}"),
        }
        StepResult { name: name.to_owned(), seconds, passed: result.is_ok() }
    }
}

impl Steps {
    /// Runs one step and prints its result; a failure is recorded, so that the next step runs too.
    pub(crate) fn run(&mut self, name: &str, work: impl FnOnce() -> Result<()>) {
        self.results.push(StepResult::of(name, work));
    }

    /// Runs steps side by side, at most `width` at once, as [`Steps::run`] does one.
    pub(crate) fn run_side_by_side<W>(&mut self, width: usize, steps: Vec<(String, W)>)
    where
        W: FnOnce() -> Result<()> + Send,
    {
        let queue = Mutex::new(steps.into_iter());
        let results = Mutex::new(Vec::new());
        let next = || queue.lock().expect("no step holds the queue").next();
        std::thread::scope(|scope| {
            for _ in 0..width {
                scope.spawn(|| {
                    while let Some((name, work)) = next() {
                        let result = StepResult::of(&name, work);
                        results.lock().expect("no step holds the results").push(result);
                    }
                });
            }
        });
        self.results.append(&mut results.into_inner().expect("a panic of a step has ended the scope"));
    }

    /// Runs a group of steps beside another one; within each they run one after another.
    pub(crate) fn run_beside(
        &mut self,
        beside: impl FnOnce(&mut Steps) + Send,
        group: impl FnOnce(&mut Steps),
    ) {
        let mut other = Steps::default();
        std::thread::scope(|scope| {
            scope.spawn(|| beside(&mut other));
            group(self);
        });
        self.results.append(&mut other.results);
    }

    /// Prints the table of steps and the line that counts them.
    pub(crate) fn finish(self) -> ExitCode {
        println!("---");
        for step in &self.results {
            let verdict = if step.passed { "ok  " } else { "FAIL" };
            println!("{verdict} {:>8.1} s  {}", step.seconds, step.name);
        }
        let failed = self.results.iter().filter(|step| !step.passed).count();
        println!("{} passed, {failed} failed", self.results.len() - failed);
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_side_by_side_all_run_and_a_failure_is_kept() {
        let mut steps = Steps::default();
        let step = |n: i32| {
            let work = move || if n == 3 { anyhow::bail!("three") } else { Ok(()) };
            (n.to_string(), work)
        };
        steps.run_side_by_side(2, (0..6).map(step).collect());
        let mut results: Vec<(String, bool)> =
            steps.results.iter().map(|result| (result.name.clone(), result.passed)).collect();
        results.sort();
        assert_eq!(results, (0..6).map(|n| (n.to_string(), n != 3)).collect::<Vec<_>>());
    }

    #[test]
    fn a_group_beside_another_is_counted_with_it() {
        let mut steps = Steps::default();
        let fails = |steps: &mut Steps| steps.run("b", || anyhow::bail!("failed"));
        steps.run_beside(fails, |steps| steps.run("a", || Ok(())));
        let results: Vec<(&str, bool)> = steps.results.iter().map(|r| (r.name.as_str(), r.passed)).collect();
        assert_eq!(results, [("a", true), ("b", false)]);
    }
}
