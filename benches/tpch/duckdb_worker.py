"""DuckDB over the Parquet files: the same requests and results as the program's workers."""

import csv
import decimal
import json
import os
import resource
import sys
import time

try:
    import duckdb
except ImportError:
    sys.exit("the module duckdb is not installed")

TABLES = ["region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem"]


def peak_rss():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM:"))


def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def use_files(connection, folder):
    for table in TABLES:
        path = os.path.join(folder, table + ".parquet")
        if os.path.exists(path):
            quoted = path.replace("'", "''")
            connection.execute(f"CREATE OR REPLACE VIEW {table} AS SELECT * FROM read_parquet('{quoted}')")


def write(path, names, rows):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(rows)


def answer(connection, request):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    began, used = time.monotonic(), cpu()
    names, rows = [], []
    if "files" in request:
        use_files(connection, request["files"])
    else:
        cursor = connection.execute(request["query"]["sql"])
        rows = cursor.fetchall()
        names = [column[0] for column in cursor.description]
    result = {"seconds": time.monotonic() - began, "cpu": cpu() - used, "peak_rss": peak_rss(), "rows": len(rows)}
    path = request.get("query", {}).get("answer")
    if path:
        write(path, names, rows)
    return result


def main():
    decimal.getcontext().prec = 50
    connection = duckdb.connect(config={"threads": int(sys.argv[1])})
    print(json.dumps({"version": duckdb.__version__}), flush=True)
    for line in sys.stdin:
        try:
            result = answer(connection, json.loads(line))
        except Exception as error:  # The controlling program reports it.
            result = {"error": str(error)}
        print(json.dumps(result), flush=True)


main()
