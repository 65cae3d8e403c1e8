import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** What the programs of all clients share: named checks, a line for each, and the metrics of the servers. */
final class Checks {
  interface Check {
    void run() throws Exception;
  }

  /** Characters of a value that an error repeats. */
  private static final int SHOWN = 400;

  private final String client;
  private final Map<String, Check> checks = new LinkedHashMap<>();

  Checks(String client) {
    this.client = client;
  }

  void add(String name, Check check) {
    checks.put(name, check);
  }

  /** Runs all in order, prints a line for each, and returns the exit code: 1 if one failed. */
  int runAll() {
    int failed = 0;
    for (Map.Entry<String, Check> check : checks.entrySet()) {
      long start = System.nanoTime();
      String verdict = "ok  ";
      try {
        check.getValue().run();
      } catch (Throwable problem) {
        verdict = "FAIL";
        failed++;
        problem.printStackTrace(System.out);
      }
      double seconds = (System.nanoTime() - start) / 1e9;
      System.out.printf("%s %6.2f s  %s: %s%n", verdict, seconds, client, check.getKey());
    }
    return failed == 0 ? 0 : 1;
  }

  static void equal(String what, Object expected, Object actual) {
    if (!Objects.equals(expected, actual)) {
      throw new AssertionError(what + ": expected " + shown(expected) + ", got " + shown(actual));
    }
  }

  private static String shown(Object value) {
    String text = String.valueOf(value);
    return text.length() <= SHOWN ? text : text.substring(0, SHOWN) + "... (" + text.length() + " characters)";
  }

  static void holds(String what, boolean condition) {
    if (!condition) {
      throw new AssertionError(what);
    }
  }

  /** Runs what must fail, and checks that a message among its causes has the text. */
  static void fails(String what, String text, Check work) {
    try {
      work.run();
    } catch (Throwable problem) {
      for (Throwable cause = problem; cause != null; cause = cause.getCause()) {
        if (String.valueOf(cause.getMessage()).contains(text)) {
          return;
        }
      }
      throw new AssertionError(what + ": no cause says \"" + text + "\"", problem);
    }
    throw new AssertionError(what + ": it did not fail");
  }

  /** Sum of a counter over all entities of the tablet servers whose web addresses, host:port, are given. */
  static long counter(String webAddresses, String metric) throws Exception {
    Pattern value = Pattern.compile("\"name\": *\"" + metric + "\",[^}]*?\"value\": *(\\d+)");
    long sum = 0;
    boolean found = false;
    for (String address : webAddresses.split(",")) {
      URL url = new URL("http://" + address + "/metrics?metrics=" + metric);
      String page = new String(url.openStream().readAllBytes(), StandardCharsets.UTF_8);
      Matcher match = value.matcher(page);
      while (match.find()) {
        sum += Long.parseLong(match.group(1));
        found = true;
      }
    }
    holds("no server has the metric " + metric, found);
    return sum;
  }
}
