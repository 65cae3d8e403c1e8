//! Orders that a server must refuse, each with the code that masters and tools decide by, and one that it has carried
//! out before.

use std::sync::Arc;

use engine::ids::{TabletId, Uuid};
use engine::tablet::Tablet;
use nyala_common::wire::schema::{id_bytes, schema_to_pb};
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::tablet::TabletDataState;
use nyala_proto::kudu::tserver::tablet_server_error_pb::Code;
use nyala_proto::kudu::tserver::{
    AlterSchemaRequestPb, AlterSchemaResponsePb, CreateTabletResponsePb, DeleteTabletRequestPb,
    DeleteTabletResponsePb, TabletServerErrorPb,
};

use super::tablet_case::TabletCase;
use super::{SERVERS, ServingTrial};
use crate::trials::requests;
use crate::wire::client::{ADMIN, CallFailure};

/// A tablet that no server has.
const NOWHERE: TabletId = Uuid([0xee; 16]);
/// Index of a configuration before the initial one, which is at -1.
const STALE_INDEX: i64 = -2;

/// An order about a replica that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OrderKind {
    /// Creates the replica a second time.
    Create,
    /// Deletes it as of an older configuration than it knows.
    DeleteStale,
    /// Deletes the replica of another server.
    DeleteElsewhere,
    /// Alters the schema at another server.
    AlterElsewhere,
    /// Alters a tablet that the server does not have.
    AlterNowhere,
    /// Alters the schema to the version before the present one.
    AlterBack,
    /// Alters it to another schema of the present version.
    AlterInPlace,
    /// Alters it to the present schema, as a master does that did not get the reply.
    AlterAgain,
}

const ORDERS: [OrderKind; 8] = [
    OrderKind::Create,
    OrderKind::DeleteStale,
    OrderKind::DeleteElsewhere,
    OrderKind::AlterElsewhere,
    OrderKind::AlterNowhere,
    OrderKind::AlterBack,
    OrderKind::AlterInPlace,
    OrderKind::AlterAgain,
];

/// Returns the codes of the error, of the service and of the status; `None` for an order that succeeds.
fn codes_of(order: OrderKind) -> Option<(Code, ErrorCode)> {
    match order {
        OrderKind::Create => Some((Code::TabletAlreadyExists, ErrorCode::AlreadyPresent)),
        OrderKind::DeleteStale => Some((Code::CasFailed, ErrorCode::IllegalState)),
        OrderKind::DeleteElsewhere | OrderKind::AlterElsewhere => {
            Some((Code::WrongServerUuid, ErrorCode::InvalidArgument))
        }
        OrderKind::AlterNowhere => Some((Code::TabletNotFound, ErrorCode::NotFound)),
        OrderKind::AlterBack => Some((Code::TabletHasANewerSchema, ErrorCode::InvalidArgument)),
        OrderKind::AlterInPlace => Some((Code::MismatchedSchema, ErrorCode::InvalidArgument)),
        OrderKind::AlterAgain => None,
    }
}

/// Returns true if a reply with this error, or without one, is right.
fn is_right(order: OrderKind, error: Option<&TabletServerErrorPb>) -> bool {
    let codes = codes_of(order).map(|(code, status)| (code as i32, status as i32));
    error.map(|error| (error.code, error.status.code)) == codes
}

impl ServingTrial {
    /// Gives a server all orders about a replica that runs there.
    pub(super) fn give_known_orders(&mut self, server: usize) {
        let is_here = |at: &usize| !self.tablets[*at].is_dropped && self.open_tablet(server, *at).is_some();
        let here: Vec<usize> = (0..self.tablets.len()).filter(is_here).collect();
        if here.is_empty() {
            return;
        }
        let at = self.random.pick(&here);
        ORDERS.into_iter().for_each(|order| self.give_known_order(server, at, order));
    }

    /// Gives an order. Its error counts if the replica was open all the time, with the same schema: one that has failed
    /// may be opened again, and an alteration whose reply is missing may arrive. What must be refused never succeeds.
    fn give_known_order(&mut self, server: usize, at: usize, order: OrderKind) {
        let Some(tablet) = self.open_tablet(server, at) else { return };
        let version = tablet.schema_version();
        // The server looks at its space before it looks for the tablet.
        let has_no_space = order == OrderKind::Create && self.directories[server].are_full();
        if has_no_space || order == OrderKind::AlterBack && version == 0 {
            return;
        }
        let case = self.tablets[at].clone();
        let reply = match order {
            OrderKind::Create => self.create_known(server, &case),
            OrderKind::DeleteStale | OrderKind::DeleteElsewhere => self.delete_known(server, &case, order),
            _ => self.alter_known(server, &case, order, version),
        };
        let is_same = self.open_tablet(server, at).is_some_and(|now| Arc::ptr_eq(&now, &tablet))
            && tablet.schema_version() == version;
        self.fleet.note(format!("{order:?} of {at} at {server}, {is_same}: {reply:?}"));
        let Ok(error) = &reply else { return };
        let has_succeeded = error.is_none() && codes_of(order).is_some();
        if has_succeeded || is_same && !is_right(order, error.as_ref()) {
            self.fleet.report(format!("{order:?} of {at} at {server}: {reply:?}"));
        }
    }

    /// Returns a tablet as it is open at a server, if its replica runs there.
    fn open_tablet(&self, server: usize, at: usize) -> Option<Arc<Tablet>> {
        self.fleet.replica(server, self.tablets[at].id).map(|replica| replica.tablet().clone())
    }

    fn create_known(
        &mut self,
        server: usize,
        case: &TabletCase,
    ) -> Result<Option<TabletServerErrorPb>, CallFailure> {
        let request = self.creation(case, server);
        let reply: Result<CreateTabletResponsePb, _> =
            self.fleet.call(server, (ADMIN, "CreateTablet"), request);
        reply.map(|reply| reply.error)
    }

    fn delete_known(
        &mut self,
        server: usize,
        case: &TabletCase,
        order: OrderKind,
    ) -> Result<Option<TabletServerErrorPb>, CallFailure> {
        let states = [TabletDataState::TabletDataDeleted, TabletDataState::TabletDataTombstoned];
        let to = self.random.pick(&states);
        let is_stale = order == OrderKind::DeleteStale;
        let meant = if is_stale { server } else { (server + 1) % SERVERS };
        let request = DeleteTabletRequestPb {
            cas_config_opid_index_less_or_equal: is_stale.then_some(STALE_INDEX),
            ..requests::delete_tablet(self.fleet.ids[meant], case.id, to)
        };
        let reply: Result<DeleteTabletResponsePb, _> =
            self.fleet.call(server, (ADMIN, "DeleteTablet"), request);
        reply.map(|reply| reply.error)
    }

    fn alter_known(
        &mut self,
        server: usize,
        case: &TabletCase,
        order: OrderKind,
        version: u32,
    ) -> Result<Option<TabletServerErrorPb>, CallFailure> {
        let is_elsewhere = order == OrderKind::AlterElsewhere;
        let meant = if is_elsewhere { (server + 1) % SERVERS } else { server };
        let tablet = if order == OrderKind::AlterNowhere { NOWHERE } else { case.id };
        let mut schema = schema_to_pb(&self.schema);
        if order == OrderKind::AlterInPlace {
            schema.columns.iter_mut().for_each(|column| column.name.push_str("_renamed"));
        }
        let request = AlterSchemaRequestPb {
            dest_uuid: Some(id_bytes(&self.fleet.ids[meant])),
            tablet_id: id_bytes(&tablet),
            schema,
            schema_version: if order == OrderKind::AlterBack { version - 1 } else { version },
            ..Default::default()
        };
        let reply: Result<AlterSchemaResponsePb, _> =
            self.fleet.call(server, (ADMIN, "AlterSchema"), request);
        if let Ok(AlterSchemaResponsePb { error: None, timestamp: Some(again) }) = reply {
            self.fleet.report(format!("{order:?} at {server} is carried out at {again}"));
        }
        reply.map(|reply| reply.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_has_its_codes_and_no_others() {
        let error = |code: Code, status: ErrorCode| {
            let mut error = TabletServerErrorPb { code: code as i32, ..Default::default() };
            error.status.code = status as i32;
            error
        };
        for order in ORDERS {
            let right = codes_of(order).map(|(code, status)| error(code, status));
            assert!(is_right(order, right.as_ref()), "{order:?}");
            assert!(!is_right(order, Some(&error(Code::UnknownError, ErrorCode::IllegalState))), "{order:?}");
        }
        assert!(!is_right(OrderKind::Create, None), "a replica that is there is not created");
        let other = error(Code::CasFailed, ErrorCode::InvalidArgument);
        assert!(!is_right(OrderKind::DeleteStale, Some(&other)), "the status counts as well");
        assert!(!is_right(
            OrderKind::AlterAgain,
            Some(&error(Code::MismatchedSchema, ErrorCode::InvalidArgument))
        ));
    }
}
