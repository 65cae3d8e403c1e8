package org.apache.nifi.kerberos;

import org.apache.nifi.controller.ControllerService;

/** Place of a class that no registry has; see {@link org.apache.nifi.security.krb.KerberosUser}. */
public interface KerberosCredentialsService extends ControllerService {
  String getKeytab();

  String getPrincipal();
}
