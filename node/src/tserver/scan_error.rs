//! Errors of scan calls.

use nyala_common::rpc::{Reply, RpcErrorCodePb};
use nyala_common::wire::errors::{TabletError, TabletErrorCode};
use nyala_proto::kudu::app_status_pb::ErrorCode;

use super::scanners::ScannerError;

/// Error of a scan call.
#[derive(Debug)]
pub(super) enum ScanError {
    /// The call succeeds and its response contains the error.
    Tablet(TabletError),
    /// The call fails.
    Rpc(Reply),
}

impl From<TabletError> for ScanError {
    fn from(error: TabletError) -> ScanError {
        match error.is_busy() {
            true => ScanError::Rpc(Reply::too_busy(error.status.message.unwrap_or_default())),
            false => ScanError::Tablet(error),
        }
    }
}

impl From<ScannerError> for ScanError {
    fn from(refusal: ScannerError) -> ScanError {
        let invalid = |message| {
            let code = TabletErrorCode::InvalidScanCallSeqId;
            ScanError::Tablet(TabletError::new(code, ErrorCode::InvalidArgument, message))
        };
        let not_found = |message| {
            ScanError::Tablet(TabletError::new(TabletErrorCode::ScannerExpired, ErrorCode::NotFound, message))
        };
        match refusal {
            ScannerError::Gone(id) => not_found(format!("Scanner {id} not found (it may have expired)")),
            ScannerError::NotAnId => not_found("Scanner with an ill-formed id not found".to_string()),
            ScannerError::WrongSequence(expected) => {
                invalid(format!("Invalid call sequence ID: {expected} was expected; the scanner is closed"))
            }
            ScannerError::Foreign => {
                let message = "Not authorized: the scanner belongs to another user";
                ScanError::Rpc(Reply::error(RpcErrorCodePb::FatalUnauthorized, message))
            }
        }
    }
}
