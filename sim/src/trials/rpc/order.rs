//! What a call asks of the made-up service, as text, and the bytes that its reply has.

use bytes::Bytes;
use sim_plan::RandomStream;

/// Longest wait of a call within the service, before and after its effect.
const WAIT_MICROS: u64 = 120_000;
/// Longest time before which a reply may not leave.
const BARRIER_MICROS: u64 = 400_000;
/// Sizes of requests, replies and sidecars in bytes: around the limits of copies and windows.
const SIZES: [u64; 8] = [0, 1, 200, 4_095, 4_097, 9_000, 40_000, 150_000];

/// The method of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// Begins on its connection's task.
    Quick,
    /// Runs on a task of its own.
    Slow,
    /// Executed once per request id.
    Tracked,
    /// One that the service does not have.
    Unknown,
}

impl Method {
    pub(super) fn name(self) -> &'static str {
        match self {
            Method::Quick => "Quick",
            Method::Slow => "Slow",
            Method::Tracked => "Tracked",
            Method::Unknown => "Unknown",
        }
    }
}

/// An order to the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Order {
    pub number: u64,
    /// Microseconds to wait before and after the effect.
    pub before: u64,
    pub after: u64,
    /// Microseconds after the effect before which no reply may leave, not even a repeated one.
    pub barrier: u64,
    /// Number of its first calls that the service refuses, as if it was busy.
    pub refusals: u64,
    /// True if the call lets others begin while it waits.
    pub releases: bool,
    /// True if it leaves its connection before it does anything.
    pub leaves: bool,
    /// Sizes of the reply's text and sidecars, and of the request's sidecars.
    pub reply: usize,
    pub sidecars: Vec<usize>,
    pub attached: Vec<usize>,
    /// Length of the filling of the request.
    pub filling: usize,
}

impl Order {
    /// Draws an order; small ones are frequent.
    pub(super) fn draw(random: &mut RandomStream, number: u64) -> Order {
        let most = if random.percent(30) { SIZES.len() } else { 3 };
        let wait = |random: &mut RandomStream| if random.percent(40) { random.below(WAIT_MICROS) } else { 0 };
        let size = |random: &mut RandomStream| SIZES[random.below(most as u64) as usize] as usize;
        let sizes = |random: &mut RandomStream| -> Vec<usize> {
            (0..random.below(3)).map(|_| size(random)).collect()
        };
        let (before, after) = (wait(random), wait(random));
        let (reply, filling) = (size(random), size(random));
        let (sidecars, attached) = (sizes(random), sizes(random));
        let (releases, leaves) = (random.percent(20), random.percent(20));
        let barrier = if random.percent(10) { random.below(BARRIER_MICROS) } else { 0 };
        let refusals = if random.percent(10) { random.between(1, 2) } else { 0 };
        Order {
            number,
            before,
            after,
            barrier,
            refusals,
            releases,
            leaves,
            reply,
            sidecars,
            attached,
            filling,
        }
    }

    /// Returns an order that takes no time.
    pub(super) fn small(number: u64) -> Order {
        Order {
            number,
            before: 0,
            after: 0,
            barrier: 0,
            refusals: 0,
            releases: false,
            leaves: false,
            reply: 1,
            sidecars: Vec::new(),
            attached: Vec::new(),
            filling: 1,
        }
    }

    /// Returns the order as the text of a request.
    pub(super) fn to_text(&self) -> String {
        let list = |sizes: &[usize]| sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        format!(
            "{} {} {} {} {} {} {} {} [{}] [{}] {}",
            self.number,
            self.before,
            self.after,
            self.barrier,
            self.refusals,
            u8::from(self.releases),
            u8::from(self.leaves),
            self.reply,
            list(&self.sidecars),
            list(&self.attached),
            "x".repeat(self.filling),
        )
    }

    /// Parses a request; `None` if it did not arrive as it was sent.
    pub(super) fn parse(text: &str) -> Option<Order> {
        let mut words = text.split(' ');
        let mut word = || words.next();
        let mut number = || word()?.parse::<u64>().ok();
        let (of, before, after) = (number()?, number()?, number()?);
        let (barrier, refusals) = (number()?, number()?);
        let (releases, leaves, reply) = (number()? == 1, number()? == 1, number()? as usize);
        let mut list = || -> Option<Vec<usize>> {
            let text = words.next()?.strip_prefix('[')?.strip_suffix(']')?;
            text.split(',').filter(|size| !size.is_empty()).map(|size| size.parse().ok()).collect()
        };
        let (sidecars, attached) = (list()?, list()?);
        let filling = words.next()?;
        let order = Order {
            number: of,
            before,
            after,
            barrier,
            refusals,
            releases,
            leaves,
            reply,
            sidecars,
            attached,
            filling: filling.len(),
        };
        filling.bytes().all(|byte| byte == b'x').then_some(order)
    }

    /// Returns the text of the reply to a caller.
    pub(super) fn reply_text(&self, user: &str) -> String {
        format!("{} {user} {}", self.number, "y".repeat(self.reply))
    }

    pub(super) fn reply_sidecars(&self) -> Vec<Bytes> {
        self.sidecars.iter().enumerate().map(|(at, size)| pattern(self.number, at as u64, *size)).collect()
    }

    pub(super) fn request_sidecars(&self) -> Vec<Bytes> {
        let one = |(at, size): (usize, &usize)| pattern(self.number, 10 + at as u64, *size);
        self.attached.iter().enumerate().map(one).collect()
    }
}

/// Returns bytes by which each place of each sidecar is recognised.
fn pattern(number: u64, sidecar: u64, size: usize) -> Bytes {
    let start = number.wrapping_mul(31).wrapping_add(sidecar * 7) as usize;
    (0..size).map(|at| (start + at + at / 251) as u8).collect::<Vec<_>>().into()
}
