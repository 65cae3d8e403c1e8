//! Starts of the server with other directories: those that must succeed, and those that must be refused.

use node::tserver::TserverConfig;

use super::{DIRS, DirectoriesTrial};
use crate::cluster;
use crate::trials::fleet::host;
use crate::world::World;

impl DirectoriesTrial {
    /// Restarts the server with its directories named in another order.
    pub(super) fn reorder(&mut self) {
        let at = self.random.below(DIRS.len() as u64) as usize;
        self.order.rotate_left(at);
        if self.random.percent(50) {
            self.order.swap(0, 1);
        }
        self.start_all("with its directories in another order");
    }

    /// Restarts the server after two of its disks have changed places: tablets go with their disks.
    pub(super) fn exchange(&mut self) {
        let first = self.random.below(DIRS.len() as u64) as usize;
        let (one, other) = (DIRS[first], DIRS[(first + 1) % DIRS.len()]);
        self.fleet.kill(0);
        let machine = self.fleet.world.machine(&host(0).name());
        let (disk, second) = (machine.unmount(one), machine.unmount(other));
        machine.mount(one, second);
        machine.mount(other, disk);
        for tablet in &mut self.tablets {
            let places = [(one, other), (other, one)];
            let moved = places.into_iter().find(|(from, _)| tablet.dir == *from);
            tablet.dir = moved.map_or(tablet.dir, |(_, to)| to);
        }
        self.start_all("after two disks have changed places");
    }

    /// Starts the server without one of its directories, which must be refused, and then with it.
    pub(super) fn omit(&mut self) {
        let omitted = self.random.pick(&DIRS);
        let named = self.order.iter().copied().filter(|dir| *dir != omitted).collect();
        self.refuse(named, &[], omitted);
        self.start_all("with all of its directories");
    }

    /// Loses a disk, in whose place an empty one is. A start must be refused until the operator gives it up, or finds
    /// the disk again.
    pub(super) fn lose(&mut self) {
        let lost = self.random.pick(&DIRS);
        self.fleet.kill(0);
        let disk = self.fleet.world.machine(&host(0).name()).unmount(lost);
        self.refuse(self.order.clone(), &[], lost);
        if self.random.percent(30) {
            self.fleet.world.machine(&host(0).name()).mount(lost, disk);
            return self.start_all("after a disk was found again");
        }
        // A disk without tablets may join again.
        if self.tablets.iter().any(|tablet| tablet.dir == lost && !tablet.is_lost) {
            self.given_up.push((lost, disk));
        }
        for tablet in self.tablets.iter_mut().filter(|tablet| tablet.dir == lost) {
            tablet.is_lost = true;
        }
        // What was refused has changed nothing.
        self.start(self.order.clone(), &[lost]);
        self.check_tablets("with a directory that is given up");
        if self.random.percent(50) {
            self.start_all("again, without that directory's name among the lost ones");
        }
    }

    /// Starts the server with a disk that was given up in place of the present one, which must be refused.
    pub(super) fn bring_back(&mut self) {
        let Some((dir, disk)) = self.given_up.pop() else { return };
        self.fleet.kill(0);
        let machine = self.fleet.world.machine(&host(0).name());
        let present = machine.unmount(dir);
        machine.mount(dir, disk);
        let lost: &[&str] = if self.random.percent(50) { &[dir] } else { &[] };
        self.refuse(self.order.clone(), lost, dir);
        self.fleet.kill(0);
        let disk = machine.unmount(dir);
        machine.mount(dir, present);
        // The disk stays what it was.
        self.given_up.push((dir, disk));
        self.start_all("without the disk that was given up");
    }

    /// Starts the server with all of its directories, and checks its tablets.
    fn start_all(&mut self, how: &str) {
        self.start(self.order.clone(), &[]);
        self.check_tablets(how);
    }

    /// Starts the server, which must succeed.
    fn start(&mut self, dirs: Vec<&str>, lost: &[&str]) {
        let ended = self.fleet.reboot(0, self.config(&dirs, lost));
        self.fleet.note(format!("a start with {dirs:?}, {lost:?} lost: {ended:?}"));
        if let Some(error) = ended {
            self.fleet.report(format!("the server does not start with {dirs:?}, {lost:?} lost: {error}"));
        }
    }

    /// Starts the server, which must be refused for a directory that it names.
    fn refuse(&mut self, dirs: Vec<&str>, lost: &[&str], wrong: &str) {
        let ended = self.fleet.reboot(0, self.config(&dirs, lost));
        self.fleet.note(format!("a start with {dirs:?}, {lost:?} lost, {wrong} wrong: {ended:?}"));
        let is_named = |error: &String| error.contains(&format!("directory {wrong} "));
        if !ended.as_ref().is_some_and(is_named) {
            self.fleet.report(format!(
                "the server starts with {dirs:?}, {lost:?} lost, although {wrong} is not its own, or does not name it: \
                 {ended:?}"
            ));
        }
    }

    fn config(&self, dirs: &[&str], lost: &[&str]) -> TserverConfig {
        let strings = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect();
        let config = cluster::tserver_config(&self.fleet.plan, host(0));
        TserverConfig { data_dirs: strings(dirs), lost_data_dirs: strings(lost), ..config }
    }
}
