import java.io.PrintWriter;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;

import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.Result;
import org.junit.runner.manipulation.Filter;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Runs one JUnit class, or only the tests of it that are named, and writes a line per test to a file, as soon as the
 * test ends: {@code RunClass CLASS FILE [TEST...]}. A line is
 * name, pass or fail or ignored, milliseconds, first line of the failure; separated by tabs.
 */
public final class RunClass extends RunListener {
  private final PrintWriter results;
  private long start;
  private String failure;

  private RunClass(PrintWriter results) {
    this.results = results;
  }

  public static void main(String[] args) throws Exception {
    Result result;
    try (PrintWriter results = new PrintWriter(args[1], "UTF-8")) {
      JUnitCore core = new JUnitCore();
      core.addListener(new RunClass(results));
      Request request = Request.aClass(Class.forName(args[0]));
      if (args.length > 2) {
        request = request.filterWith(only(new HashSet<>(Arrays.asList(args).subList(2, args.length))));
      }
      result = core.run(request);
    }
    System.exit(result.wasSuccessful() ? 0 : 1);
  }

  /** A class is kept for the sake of its tests. */
  private static Filter only(Set<String> tests) {
    return new Filter() {
      @Override
      public boolean shouldRun(Description description) {
        return description.isSuite() || tests.contains(description.getMethodName());
      }

      @Override
      public String describe() {
        return "only " + tests;
      }
    };
  }

  @Override
  public void testStarted(Description test) {
    start = System.nanoTime();
    failure = null;
  }

  /** The first one counts: what follows comes from shutting the cluster down. */
  @Override
  public void testFailure(Failure problem) {
    if (failure == null) {
      failure = String.valueOf(problem.getException()).split("[\r\n]")[0].replace('\t', ' ');
    }
    if (problem.getDescription().getMethodName() == null) {
      line(problem.getDescription().getDisplayName(), "fail", failure);
    }
  }

  @Override
  public void testAssumptionFailure(Failure problem) {
    testFailure(problem);
    failure = "assumption: " + failure;
  }

  @Override
  public void testFinished(Description test) {
    line(test.getMethodName(), failure == null ? "pass" : "fail", failure == null ? "" : failure);
  }

  @Override
  public void testIgnored(Description test) {
    start = System.nanoTime();
    line(test.getMethodName(), "ignored", "");
  }

  private void line(String name, String verdict, String message) {
    results.printf("%s\t%s\t%d\t%s%n", name, verdict, (System.nanoTime() - start) / 1_000_000, message);
    results.flush();
  }
}
