//! Steps: each announced, timed and counted; the last line has the numbers of passed and failed ones.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;

/// Steps that have run.
#[derive(Default)]
pub struct Steps {
    results: Vec<StepResult>,
}

struct StepResult {
    name: String,
    seconds: f64,
    passed: bool,
}

impl Steps {
    /// Runs one step and prints its result; a failure is recorded, so that the next step runs too.
    pub fn run(&mut self, name: &str, work: impl FnOnce() -> Result<()>) {
        println!("--- {name}");
        let start = Instant::now();
        let result = work();
        let seconds = start.elapsed().as_secs_f64();
        match &result {
            Ok(()) => println!("ok   {name} ({seconds:.1} s)"),
            Err(error) => println!("FAIL {name} ({seconds:.1} s): {error:#}"),
        }
        self.results.push(StepResult { name: name.to_owned(), seconds, passed: result.is_ok() });
    }

    /// Prints the table of steps and the line that counts them.
    pub fn finish(self) -> ExitCode {
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
