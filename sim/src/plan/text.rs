//! The text of a plan: one line per setting, op and fault; `#` begins a comment.

use std::fmt;
use std::str::FromStr;

use super::ops::{ClientProgram, ClientSetup, Op};
use super::record::{BadLine, Field, Record};
use super::{ClockError, Cluster, Data, Devices, Ending, Network, Plan, Sending, TimedFault};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}", self.seed)?;
        writeln!(f, "{}", self.cluster.line())?;
        if self.data != Data::default() {
            writeln!(f, "{}", self.data.line())?;
        }
        if self.sending != Sending::default() {
            writeln!(f, "{}", self.sending.line())?;
        }
        writeln!(f, "{}", self.devices.line())?;
        writeln!(f, "{}", self.network.line())?;
        for clock in &self.clocks {
            writeln!(f, "{}", clock.line())?;
        }
        writeln!(f, "limit {}", self.limit.text())?;
        writeln!(f, "quiet {}", self.quiet.text())?;
        for client in &self.clients {
            writeln!(f, "{}", client.setup.line())?;
            for op in &client.ops {
                writeln!(f, "  {}", op.line())?;
            }
        }
        for fault in &self.faults {
            writeln!(f, "{}", fault.line())?;
        }
        if self.ending != Ending::Stay {
            writeln!(f, "ending {}", self.ending.text())?;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Parts {
    seed: Option<u64>,
    cluster: Option<Cluster>,
    data: Data,
    sending: Sending,
    devices: Option<Devices>,
    network: Option<Network>,
    clocks: Vec<ClockError>,
    limit: Option<std::time::Duration>,
    quiet: Option<std::time::Duration>,
    clients: Vec<ClientProgram>,
    faults: Vec<TimedFault>,
    ending: Option<Ending>,
}

impl Parts {
    fn take(&mut self, line: &str, indented: bool) -> Result<(), BadLine> {
        if indented {
            let no_client = || BadLine(format!("the op {line:?} belongs to no client"));
            self.clients.last_mut().ok_or_else(no_client)?.ops.push(Op::parse_line(line)?);
            return Ok(());
        }
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "seed" => self.seed = Some(value(line, rest)?),
            "limit" => self.limit = Some(value(line, rest)?),
            "quiet" => self.quiet = Some(value(line, rest)?),
            "ending" => self.ending = Some(value(line, rest)?),
            Cluster::WORD => self.cluster = Some(Cluster::parse_line(line)?),
            Data::WORD => self.data = Data::parse_line(line)?,
            Sending::WORD => self.sending = Sending::parse_line(line)?,
            Devices::WORD => self.devices = Some(Devices::parse_line(line)?),
            Network::WORD => self.network = Some(Network::parse_line(line)?),
            ClockError::WORD => self.clocks.push(ClockError::parse_line(line)?),
            ClientSetup::WORD => {
                self.clients.push(ClientProgram { setup: ClientSetup::parse_line(line)?, ops: Vec::new() });
            }
            "at" => self.faults.push(TimedFault::parse_line(line)?),
            _ => return Err(BadLine(format!("{word:?} begins no line of a plan"))),
        }
        Ok(())
    }

    fn plan(self) -> Result<Plan, BadLine> {
        let missing = |what: &str| BadLine(format!("the line `{what}` is missing"));
        let mut faults = self.faults;
        faults.sort_by_key(|fault| fault.at);
        Ok(Plan {
            seed: self.seed.ok_or_else(|| missing("seed"))?,
            cluster: self.cluster.ok_or_else(|| missing("cluster"))?,
            data: self.data,
            sending: self.sending,
            devices: self.devices.ok_or_else(|| missing("disk"))?,
            network: self.network.ok_or_else(|| missing("net"))?,
            clocks: self.clocks,
            clients: self.clients,
            faults,
            ending: self.ending.unwrap_or(Ending::Stay),
            limit: self.limit.ok_or_else(|| missing("limit"))?,
            quiet: self.quiet.ok_or_else(|| missing("quiet"))?,
        })
    }
}

fn value<T: Field>(line: &str, text: &str) -> Result<T, BadLine> {
    T::parse(text.trim()).ok_or_else(|| BadLine(format!("{line:?} makes no sense")))
}

impl FromStr for Plan {
    type Err = BadLine;

    fn from_str(text: &str) -> Result<Plan, BadLine> {
        let mut parts = Parts::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            if line.trim().is_empty() {
                continue;
            }
            let indented = line.starts_with(char::is_whitespace);
            let taken = parts.take(line.trim(), indented);
            taken.map_err(|bad| BadLine(format!("line {}: {bad}", number + 1)))?;
        }
        parts.plan()
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::{Plan, Profile, Size};

    #[test]
    fn every_plan_comes_back_from_its_text() {
        for seed in 0..200 {
            let profile = Profile::ALL[seed as usize % Profile::ALL.len()];
            let plan = Plan::generate(seed, profile, Size::Smoke);
            let text = plan.to_string();
            assert_eq!(text.parse::<Plan>().as_ref(), Ok(&plan), "{text}");
        }
    }

    #[test]
    fn comments_are_no_part_and_mistakes_are_named_with_their_line() {
        let plan = Plan::generate(1, Profile::Swarm, Size::Smoke);
        let noted = format!("# a note\n\n{plan}");
        assert_eq!(noted.parse(), Ok(plan.clone()));
        let wrong = format!("{plan}at 3s t0 burn\n").parse::<Plan>().unwrap_err();
        let line = plan.to_string().lines().count() + 1;
        assert_eq!(wrong.to_string(), format!("line {line}: \"burn\" begins no Fault in \"burn\""));
        assert_eq!("seed 1\n".parse::<Plan>().unwrap_err().to_string(), "the line `cluster` is missing");
    }
}
