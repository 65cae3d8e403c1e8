//! Aggregations of scans: nyala's own part of a scan request ↔ the engine's.
//!
//! A server without the feature `NYALA_AGGREGATION` would skip the field and return rows. So a client that sends it
//! requires the feature, and the server refuses the call.

use engine::error::{Error, Result};
use engine::schema::aggregation::{Aggregate, AggregateFunction, Aggregation};

use nyala_proto::kudu::tserver::nyala_aggregate_pb::Function;
use nyala_proto::kudu::tserver::{NyalaAggregatePb, NyalaAggregationPb};

/// Most group columns and aggregates of a request.
const PARTS_MAX: usize = 300;

/// Converts an aggregation. Fails with `Invalid` for an unknown function and for too many parts.
pub fn from_pb(pb: &NyalaAggregationPb) -> Result<Aggregation> {
    let parts = pb.group_by.len().max(pb.aggregates.len());
    if parts > PARTS_MAX {
        return Err(Error::invalid(format!("aggregation: {parts} columns (at most {PARTS_MAX})")));
    }
    let group_by = pb.group_by.iter().map(|at| *at as usize).collect();
    let aggregates = pb.aggregates.iter().map(aggregate).collect::<Result<_>>()?;
    Ok(Aggregation { group_by, aggregates })
}

fn aggregate(pb: &NyalaAggregatePb) -> Result<Aggregate> {
    let function = match pb.function() {
        Function::Count => AggregateFunction::Count,
        Function::Sum => AggregateFunction::Sum,
        Function::SumAsDouble => AggregateFunction::SumAsDouble,
        Function::Min => AggregateFunction::Min,
        Function::Max => AggregateFunction::Max,
        Function::UnknownFunction => {
            let number = pb.function.unwrap_or_default();
            return Err(Error::invalid(format!("aggregation: unknown function {number}")));
        }
    };
    Ok(Aggregate { function, column: pb.column.map(|at| at as usize) })
}

/// Converts an aggregation to its message.
pub fn to_pb(aggregation: &Aggregation) -> NyalaAggregationPb {
    let aggregate = |aggregate: &Aggregate| {
        let function = match aggregate.function {
            AggregateFunction::Count => Function::Count,
            AggregateFunction::Sum => Function::Sum,
            AggregateFunction::SumAsDouble => Function::SumAsDouble,
            AggregateFunction::Min => Function::Min,
            AggregateFunction::Max => Function::Max,
        };
        NyalaAggregatePb { function: Some(function as i32), column: aggregate.column.map(|at| at as u32) }
    };
    NyalaAggregationPb {
        group_by: aggregation.group_by.iter().map(|at| *at as u32).collect(),
        aggregates: aggregation.aggregates.iter().map(aggregate).collect(),
    }
}
