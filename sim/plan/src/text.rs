//! Text of a plan: one line per setting, op and fault. Ops are indented below their client. `#` begins a comment.

use std::fmt;
use std::str::FromStr;

use crate::client_ops::{ClientOp, ClientProgram, ClientSetup};
use crate::faults::TimedFault;
use crate::line_format::{LineField, LineRecord, ParseError};
use crate::plan::{DATA_DIRS_MAX, Plan};
use crate::spec::{
    ClockSkew, ClusterSpec, DataSpec, DeviceSpec, FinalRestart, NetworkSpec, RaftBatching, Reseed,
    SecuritySpec,
};
use crate::tables::{ColumnSpec, ModelTable, RangeSpec, TableSpec};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}", self.seed)?;
        writeln!(f, "{}", self.cluster.line())?;
        if self.data_dirs != 1 {
            writeln!(f, "data-dirs {}", self.data_dirs)?;
        }
        if self.data != DataSpec::default() {
            writeln!(f, "{}", self.data.line())?;
        }
        if self.sending != RaftBatching::default() {
            writeln!(f, "{}", self.sending.line())?;
        }
        if let Some(security) = &self.security {
            writeln!(f, "{}", security.line())?;
        }
        writeln!(f, "{}", self.devices.line())?;
        writeln!(f, "{}", self.network.line())?;
        for clock in &self.clocks {
            writeln!(f, "{}", clock.line())?;
        }
        writeln!(f, "limit {}", self.limit.text())?;
        writeln!(f, "quiet {}", self.quiet.text())?;
        for table in &self.tables {
            writeln!(f, "{}", table.spec.line())?;
            table.columns.iter().try_for_each(|column| writeln!(f, "{}", column.line()))?;
            table.ranges.iter().try_for_each(|range| writeln!(f, "{}", range.line()))?;
        }
        for client in &self.clients {
            writeln!(f, "{}", client.setup.line())?;
            for op in &client.ops {
                writeln!(f, "  {}", op.line())?;
            }
        }
        for fault in &self.faults {
            writeln!(f, "{}", fault.line())?;
        }
        for reseed in &self.reseeds {
            writeln!(f, "{}", reseed.line())?;
        }
        if self.ending != FinalRestart::Stay {
            writeln!(f, "ending {}", self.ending.text())?;
        }
        Ok(())
    }
}

/// Lines of a plan that were parsed so far.
#[derive(Default)]
struct Parts {
    seed: Option<u64>,
    cluster: Option<ClusterSpec>,
    data_dirs: Option<u8>,
    data: DataSpec,
    sending: RaftBatching,
    security: Option<SecuritySpec>,
    devices: Option<DeviceSpec>,
    network: Option<NetworkSpec>,
    clocks: Vec<ClockSkew>,
    tables: Vec<ModelTable>,
    limit: Option<std::time::Duration>,
    quiet: Option<std::time::Duration>,
    clients: Vec<ClientProgram>,
    faults: Vec<TimedFault>,
    reseeds: Vec<Reseed>,
    ending: Option<FinalRestart>,
}

impl Parts {
    fn add_line(&mut self, line: &str, indented: bool) -> Result<(), ParseError> {
        if indented {
            let no_client = || ParseError(format!("{line:?}: no client line precedes it"));
            self.clients.last_mut().ok_or_else(no_client)?.ops.push(ClientOp::parse_line(line)?);
            return Ok(());
        }
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "seed" => self.seed = Some(value(line, rest)?),
            "data-dirs" => self.data_dirs = Some(data_dirs(line, rest)?),
            "limit" => self.limit = Some(value(line, rest)?),
            "quiet" => self.quiet = Some(value(line, rest)?),
            "ending" => self.ending = Some(value(line, rest)?),
            ClusterSpec::WORD => self.cluster = Some(ClusterSpec::parse_line(line)?),
            DataSpec::WORD => self.data = DataSpec::parse_line(line)?,
            RaftBatching::WORD => self.sending = RaftBatching::parse_line(line)?,
            SecuritySpec::WORD => self.security = Some(SecuritySpec::parse_line(line)?),
            DeviceSpec::WORD => self.devices = Some(DeviceSpec::parse_line(line)?),
            NetworkSpec::WORD => self.network = Some(NetworkSpec::parse_line(line)?),
            Reseed::WORD => self.reseeds.push(Reseed::parse_line(line)?),
            ClockSkew::WORD => self.clocks.push(ClockSkew::parse_line(line)?),
            ClientSetup::WORD => {
                self.clients.push(ClientProgram { setup: ClientSetup::parse_line(line)?, ops: Vec::new() });
            }
            TableSpec::WORD => {
                let (spec, columns, ranges) = (TableSpec::parse_line(line)?, Vec::new(), Vec::new());
                self.tables.push(ModelTable { spec, columns, ranges });
            }
            ColumnSpec::WORD => self.last_table(line)?.columns.push(ColumnSpec::parse_line(line)?),
            RangeSpec::WORD => self.last_table(line)?.ranges.push(RangeSpec::parse_line(line)?),
            "at" => self.faults.push(TimedFault::parse_line(line)?),
            _ => return Err(ParseError(format!("{line:?}: the first word is unknown ({word})"))),
        }
        Ok(())
    }

    fn last_table(&mut self, line: &str) -> Result<&mut ModelTable, ParseError> {
        self.tables.last_mut().ok_or_else(|| ParseError(format!("{line:?}: no table line precedes it")))
    }

    fn into_plan(self) -> Result<Plan, ParseError> {
        let missing = |word: &str| ParseError(format!("plan: the line `{word}` is missing"));
        let mut faults = self.faults;
        faults.sort_by_key(|fault| fault.at);
        let mut reseeds = self.reseeds;
        reseeds.sort_by_key(|reseed| reseed.at);
        Ok(Plan {
            seed: self.seed.ok_or_else(|| missing("seed"))?,
            cluster: self.cluster.ok_or_else(|| missing("cluster"))?,
            data_dirs: self.data_dirs.unwrap_or(1),
            data: self.data,
            sending: self.sending,
            security: self.security,
            devices: self.devices.ok_or_else(|| missing("disk"))?,
            network: self.network.ok_or_else(|| missing("net"))?,
            clocks: self.clocks,
            tables: self.tables,
            clients: self.clients,
            faults,
            reseeds,
            ending: self.ending.unwrap_or(FinalRestart::Stay),
            limit: self.limit.ok_or_else(|| missing("limit"))?,
            quiet: self.quiet.ok_or_else(|| missing("quiet"))?,
        })
    }
}

fn value<T: LineField>(line: &str, text: &str) -> Result<T, ParseError> {
    T::parse(text.trim()).ok_or_else(|| ParseError(format!("{line:?}: the value is invalid ({text})")))
}

fn data_dirs(line: &str, text: &str) -> Result<u8, ParseError> {
    let count: u8 = value(line, text)?;
    let is_valid = (1..=DATA_DIRS_MAX).contains(&count);
    is_valid.then_some(count).ok_or_else(|| {
        ParseError(format!("{line:?}: a tablet server has 1 to {DATA_DIRS_MAX} data directories"))
    })
}

impl FromStr for Plan {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Plan, ParseError> {
        let mut parts = Parts::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            if line.trim().is_empty() {
                continue;
            }
            let indented = line.starts_with(char::is_whitespace);
            let added = parts.add_line(line.trim(), indented);
            added.map_err(|error| ParseError(format!("line {}: {error}", number + 1)))?;
        }
        parts.into_plan()
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::Plan;
    use crate::profile::{FaultProfile, PlanSize};

    #[test]
    fn every_plan_equals_the_plan_parsed_from_its_text() {
        for seed in 0..200 {
            let profile = FaultProfile::ALL[seed as usize % FaultProfile::ALL.len()];
            let plan = Plan::generate(seed, profile, PlanSize::Smoke);
            let text = plan.to_string();
            assert_eq!(text.parse::<Plan>().as_ref(), Ok(&plan), "{text}");
        }
    }

    #[test]
    fn a_server_has_few_data_directories_and_at_least_one() {
        let plan = Plan { data_dirs: 1, ..Plan::generate(1, FaultProfile::Swarm, PlanSize::Smoke) };
        let parsed = |count: u8| format!("{plan}data-dirs {count}\n").parse::<Plan>();
        assert_eq!(parsed(3).map(|plan| plan.data_dirs), Ok(3));
        assert!(parsed(0).is_err());
        let error = parsed(4).expect_err("too many").to_string();
        assert!(error.ends_with("a tablet server has 1 to 3 data directories"), "{error}");
    }

    #[test]
    fn comments_are_ignored_and_errors_name_their_line() {
        let plan = Plan::generate(1, FaultProfile::Swarm, PlanSize::Smoke);
        let commented = format!("# a comment\n\n{plan}");
        assert_eq!(commented.parse(), Ok(plan.clone()));
        let error = format!("{plan}at 3s t0 burn\n").parse::<Plan>().unwrap_err();
        let line = plan.to_string().lines().count() + 1;
        assert_eq!(error.to_string(), format!("line {line}: \"burn\": Fault is unknown (burn)"));
        assert_eq!(
            "seed 1\n".parse::<Plan>().unwrap_err().to_string(),
            "plan: the line `cluster` is missing"
        );
    }
}
