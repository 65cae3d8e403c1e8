//! Reply to one call, on its way to the connection of the call.

use std::sync::Arc;

use super::frame;
use super::result_tracker::CachedReply;
use super::server_connection::ServerConnection;
use super::{Reply, RpcErrorCodePb};
use crate::error_text;
use nyala_proto::kudu::rpc::{ErrorStatusPb, ResponseHeader};

/// A reply ready to be sent.
#[derive(Debug, Clone)]
pub(super) enum OutgoingReply {
    Ok(CachedReply),
    Err(ErrorStatusPb),
}

impl OutgoingReply {
    pub(super) fn error(code: RpcErrorCodePb, message: impl Into<String>) -> OutgoingReply {
        let unsupported_feature_flags = Vec::new();
        OutgoingReply::Err(ErrorStatusPb {
            message: error_text::cut(message.into()),
            code: Some(code.into()),
            unsupported_feature_flags,
            ..Default::default()
        })
    }
}

impl From<Reply> for OutgoingReply {
    fn from(reply: Reply) -> OutgoingReply {
        match reply {
            Reply::Ok { body, sidecars, .. } => {
                OutgoingReply::Ok(CachedReply { body: body.into(), sidecars })
            }
            Reply::Err { code, message, copy_error } => OutgoingReply::Err(ErrorStatusPb {
                message,
                code: Some(code.into()),
                tablet_copy_error: copy_error,
                ..Default::default()
            }),
            Reply::Withheld { error, .. } => (*error).into(),
        }
    }
}

/// Connection and call id for the reply to one call.
pub(super) struct Responder {
    connection: Arc<ServerConnection>,
    call_id: i32,
}

impl Responder {
    pub(super) fn new(connection: Arc<ServerConnection>, call_id: i32) -> Responder {
        Responder { connection, call_id }
    }

    pub(super) fn send(self, reply: OutgoingReply) {
        match reply {
            OutgoingReply::Ok(reply) => self.send_ok(reply),
            OutgoingReply::Err(status) => self.send_error(&status),
        }
    }

    fn send_ok(self, reply: CachedReply) {
        let total = reply.bytes();
        let Some(sidecar_offsets) = frame::sidecar_offsets(reply.body.len(), &reply.sidecars) else {
            let message =
                format!("the reply of {total} bytes does not fit into a frame; request less data per call");
            return self.send(OutgoingReply::error(RpcErrorCodePb::ErrorApplication, message));
        };
        let header = ResponseHeader { call_id: self.call_id, is_error: Some(false), sidecar_offsets };
        self.connection.reply(self.call_id, |put| {
            frame::put_head(&header, total, put.small());
            put.part(reply.body);
            reply.sidecars.into_buffers().into_iter().for_each(|buffer| put.part(buffer));
        });
    }

    fn send_error(self, status: &ErrorStatusPb) {
        let header = ResponseHeader { call_id: self.call_id, is_error: Some(true), ..Default::default() };
        self.connection.reply(self.call_id, |put| frame::put_frame(&header, status, put.small()));
    }
}
